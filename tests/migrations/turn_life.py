"""`python -m tests.migrations.turn_life FILE`: a turn's life, made by this version's flows and written down by statement.

To be run in a checkout of a version that is about to be released; the next one's schema must carry what it sent.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event

from service import conversation_flow, rebuild_run_flow, turn_flow, turn_log
from service.api.database import ALL_TENANTS, Reach, limit
from service.domain.artifact import BootId
from service.domain.events import AttemptFailed
from service.domain.revision import RevisionDigest
from service.erasure_flow import erase_conversation
from service.store import fleet, keys, rebuilds, turns
from service.store.connection import FLEET_ROLE, SERVICE_ROLE, make_engine
from service.store.feed import Cursor, read_page
from service.store.migrate import upgrade
from service.turn_flow import Pinned
from service.turn_request import TurnRequest
from stack.postgres import EmbeddedPostgres
from tests.flows.fleet import (
    ACME,
    NOW,
    REQUEST,
    Running,
    add_engine,
    completed,
    evidence,
    move_alias,
    new_id,
    pin,
    published,
)
from tests.migrations.recording import Statement, Transaction, dump

SECRET = "sk-of-the-recording"
LEASE_S = 86_400.0
OWN = Reach(tenant=ACME)
KEYED = replace(REQUEST, idempotency_key=new_id("once_"))


class Recorder:
    """Transactions of the API under its role, and those of workers and operators under theirs."""

    def __init__(self, url: str, exits: ExitStack) -> None:
        self.transactions: list[Transaction] = []
        self._engines: dict[str, Engine] = {}
        self._statements: list[Statement] = []
        self._counted = True
        for role in (SERVICE_ROLE, FLEET_ROLE):
            engine = make_engine(url, application_name="recorder", role=role)
            exits.callback(engine.dispose)
            event.listen(engine, "after_cursor_execute", self._sent)
            self._engines[role] = engine

    @contextmanager
    def api(self, name: str, reach: Reach = OWN) -> Iterator[Connection]:
        with self._recorded(name, SERVICE_ROLE) as conn:
            limit(conn, reach)
            yield conn

    @contextmanager
    def fleet(self, name: str, *, once: bool = False, counted: bool = True) -> Iterator[Connection]:
        """`counted` is False where what it finds depends on what else goes on."""
        self._counted = counted
        with self._recorded(name, FLEET_ROLE, once=once) as conn:
            yield conn
        self._counted = True

    @contextmanager
    def _recorded(self, name: str, role: str, *, once: bool = False) -> Iterator[Connection]:
        self._statements = []
        with self._engines[role].begin() as conn:
            yield conn
        made = Transaction(name=name, role=role, once=once, statements=tuple(self._statements))
        self.transactions.append(made)

    def _sent(
        self, _conn: Any, cursor: Any, sql: str, parameters: Any, _context: Any, _executemany: Any
    ) -> None:
        rows = cursor.rowcount if self._counted else None
        self._statements.append(Statement(sql=sql, parameters=parameters, rows=rows))


def record(recorder: Recorder) -> None:
    with recorder.fleet("the fleet", once=True) as conn:
        keys.create_tenant(conn, ACME)
        keys.create_key(conn, tenant=ACME, scope=keys.Scope.TENANT, secret=SECRET, now=NOW)
        old, new = add_engine(conn, "a", "boot_a"), add_engine(conn, "b", "boot_b")
        move_alias(conn, old)
        for engine in fleet.list_engines(conn):
            fleet.heartbeat(conn, boot=engine.boot, lease_s=LEASE_S)
    first = _answered(recorder)
    _rebuilt_and_lost(recorder, first, new)
    with recorder.fleet("a heartbeat") as conn:
        assert fleet.heartbeat(conn, boot=BootId("boot_a"), lease_s=LEASE_S)
    with recorder.fleet("the sweep", counted=False) as conn:
        turns.orphaned(conn, 10)
        rebuilds.stalled(conn, queued_for_s=3, limit=10)
        fleet.serving(conn)
    with recorder.fleet("the feed", counted=False) as conn:
        read_page(conn, after=Cursor(), limit=10, contents=True)
    with recorder.fleet("erasure") as conn:
        erase_conversation(
            conn, tenant=ACME, conversation=first.conversation, by="key", reason="asked for", now=NOW
        )


def _answered(recorder: Recorder) -> Running:
    with recorder.api("the key", ALL_TENANTS) as conn:
        assert keys.authenticate(conn, SECRET) is not None
    with recorder.api("acceptance") as conn:
        accepted = _accept(conn, KEYED)
    running = Running(conversation=accepted.conversation, turn=accepted.turn)
    with recorder.api("the plan") as conn:
        pinned = pin(conn, running)
    with recorder.api("the lease") as conn:
        assert turns.renew_lease(conn, turn=running.turn, owner="api_test", lease_s=LEASE_S)
    with recorder.api("the answer") as conn:
        _complete(conn, running, pinned)
    with recorder.api("its KV") as conn:
        _publish(conn, running, pinned)
    with recorder.api("the same again") as conn:
        assert not _accept(conn, KEYED).fresh
    with recorder.api("reading it") as conn:
        conversation_flow.find_response(conn, ACME, running.turn)
        conversation_flow.find_conversation(conn, ACME, running.conversation)
    return running


def _rebuilt_and_lost(recorder: Recorder, first: Running, new: RevisionDigest) -> None:
    with recorder.api("acceptance of the second") as conn:
        accepted = _accept(conn, replace(REQUEST, conversation=first.conversation, revision=new))
    running = Running(conversation=first.conversation, turn=accepted.turn)
    with recorder.api("its plan") as conn:
        pinned = pin(conn, running)
    assert pinned.rebuild is not None
    with recorder.fleet("the claim") as conn:
        claim = rebuilds.claim(conn, rebuild=pinned.rebuild, owner="worker", lease_s=LEASE_S)
    assert claim is not None
    with recorder.fleet("the rebuild") as conn:
        rebuild_run_flow.rebuild_prompt(conn, claim)
        assert rebuilds.renew(conn, rebuild=claim.rebuild, fence=claim.fence, lease_s=LEASE_S)
        made = published(pinned.engine, artifact=new_id("kv_"))
        rebuild_run_flow.record_rebuild(
            conn, claim=claim, evidence=evidence(pinned.engine, published=made), engine=pinned.engine, now=NOW
        )
    with recorder.api("looking for it") as conn:
        rebuilds.find(conn, claim.rebuild)
    with recorder.api("a lost attempt") as conn:
        failed = AttemptFailed(turn=running.turn, attempt=1, reason="gone", partial_text="an an")
        turn_flow.fail_attempt(
            conn, tenant=ACME, conversation=first.conversation, refusal=None, failed=failed, now=NOW
        )
    with recorder.api("the second plan") as conn:
        pin(conn, running)
    with recorder.api("giving up") as conn:
        turn_flow.fail_turn(
            conn,
            tenant=ACME,
            conversation=first.conversation,
            turn=running.turn,
            code="engine_failed",
            message="gone",
            now=NOW,
        )


def _accept(conn: Connection, request: TurnRequest) -> conversation_flow.Accepted:
    return conversation_flow.accept_turn(
        conn, request, owner="api_test", lease_s=LEASE_S, now=NOW, new_id=new_id
    )


def _complete(conn: Connection, running: Running, pinned: Pinned) -> None:
    turn_flow.complete_turn(
        conn,
        tenant=ACME,
        conversation=running.conversation,
        refusal=None,
        completed=completed(pinned),
        now=NOW,
    )


def _publish(conn: Connection, running: Running, pinned: Pinned) -> None:
    made = published(pinned.engine, artifact=new_id("kv_"))
    turn_log.record_published(conn, tenant=ACME, conversation=running.conversation, published=made, now=NOW)


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="everturn-recording-") as folder, ExitStack() as exits:
        Path(folder).chmod(0o711)
        server = exits.enter_context(EmbeddedPostgres(Path(folder) / "postgres", durable=False))
        upgrade(server.url())
        recorder = Recorder(server.url(), exits)
        record(recorder)
        dump(recorder.transactions, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
