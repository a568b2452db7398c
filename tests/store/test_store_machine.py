"""The store against a model of it: appends at right and wrong versions, rollbacks and erasures, in any order."""

from collections.abc import Sequence
from typing import ClassVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from sqlalchemy import Connection, Engine

from service.domain.errors import VersionConflict
from service.domain.events import ConversationErased, Event, MessageAccepted, TenantId
from service.store import event_store
from service.store.feed import Cursor, Published, read_page
from service.store.integrity import Walked, verify
from tests.store.histories import NOW, said
from tests.store.horizon import wait_for_others
from tests.store.strategies import TEXT

STREAMS = st.sampled_from(["conv_1", "conv_2", "conv_3"])

EVENTS = st.lists(TEXT.map(said), min_size=1, max_size=3)


class Store(RuleBasedStateMachine):
    engine: ClassVar[Engine]

    def __init__(self) -> None:
        super().__init__()
        self.tenant = TenantId(uuid4().hex)
        self.log: dict[str, list[Event]] = {}
        self.erased: set[str] = set()
        self.order: list[tuple[str, int]] = []
        self.cursor = Cursor()

    @rule(stream=STREAMS, events=EVENTS, off=st.sampled_from([0, 0, 0, -1, 1]), kept=st.booleans())
    def append(self, stream: str, events: list[MessageAccepted], off: int, *, kept: bool) -> None:
        history = self.log.setdefault(stream, [])
        if stream in self.erased:
            return
        with self.engine.connect() as conn:
            if off:
                with pytest.raises(VersionConflict):
                    self._append(conn, stream, len(history) + off, events)
                conn.commit()
                return
            assert self._append(conn, stream, len(history), events) == len(history) + len(events)
            if kept:
                conn.commit()
                self._committed(stream, events)

    @rule(stream=STREAMS)
    def erase(self, stream: str) -> None:
        history = self.log.setdefault(stream, [])
        if stream in self.erased or not history:
            return
        tombstone = ConversationErased(by="key", reason="")
        with self.engine.begin() as conn:
            self._append(conn, stream, len(history), [tombstone])
            assert event_store.erase_contents(conn, tenant=self.tenant, stream=stream) == len(history)
        history[:] = [said("") for _ in history]
        self._committed(stream, [tombstone])
        self.erased.add(stream)

    @invariant()
    def what_is_read_is_what_was_committed(self) -> None:
        with self.engine.connect() as conn:
            for stream, history in self.log.items():
                assert event_store.read(conn, tenant=self.tenant, stream=stream) == history

    def _page(self) -> tuple[Published, ...]:
        with self.engine.connect() as conn:
            wait_for_others(conn)
            return read_page(conn, after=self.cursor, limit=1000)

    def _own(self, page: tuple[Published, ...]) -> list[tuple[str, int]]:
        return [(event.stream, event.version) for event in page if event.tenant == self.tenant]

    @invariant()
    def the_feed_goes_on_without_loss_or_repetition(self) -> None:
        page = self._page()
        assert self._own(page) == self.order
        self.order = []
        if page:
            self.cursor = page[-1].cursor

    def teardown(self) -> None:
        with self.engine.connect() as conn:
            assert list(verify(conn, Walked())) == []

    def _append(self, conn: Connection, stream: str, version: int, events: Sequence[Event]) -> int:
        return event_store.append(
            conn,
            tenant=self.tenant,
            stream=stream,
            expected_version=version,
            events=events,
            now=NOW,
        )

    def _committed(self, stream: str, events: Sequence[Event]) -> None:
        history = self.log[stream]
        self.order += [(stream, len(history) + number) for number in range(1, len(events) + 1)]
        history.extend(events)


def check_store(engine: Engine, *, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        type("BoundStore", (Store,), {"engine": engine}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_store_does_as_its_model(engine: Engine) -> None:
    check_store(engine, examples=20, steps=15)
