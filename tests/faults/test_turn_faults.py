"""A turn ends well, once, and in bounded time, whatever becomes of the processes that run it; its reader gets the rest."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from service.domain.cuts import NUMBERS_APART
from service.domain.events import AttemptFailed, TurnCompleted, TurnFailed, TurnPinned
from stack.postgres import EmbeddedPostgres
from stack.valkey import EmbeddedValkey
from tests.api.stack import Stack, deltas, names, sse
from tests.api.test_resume import resumed, said
from tests.conftest import copied
from tests.engines.simulated import SimulatedEngine
from tests.faults.turn_site import RECOVERED_S, Api, Site, running_site
from tests.workers.brokers import client_of
from tests.workers.celery_worker import until

Events = list[dict[str, Any]]
WORDS = 3


@pytest.fixture(scope="module")
def site(
    postgres_server: EmbeddedPostgres,
    template_database: str,
    server_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    with (
        copied(postgres_server, template_database) as database,
        EmbeddedValkey(server_folder / "valkey-turns") as broker,
        running_site(database, broker, tmp_path_factory.mktemp("turns")) as running,
    ):
        yield running


@pytest.fixture
def engine(site: Site) -> Iterator[SimulatedEngine]:
    """One of its own for each test, which holds its first answer back after a few words."""
    site.start_worker()
    site.stack.turn_bell.unheard = False
    made = site.stack.start_engine("a", alias=True)
    made.faults.hold_after = WORDS
    yield made
    made.faults.release.set()
    site.stack.retire(made)


@pytest.fixture
def exits() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


class Reader:
    """Of a stream whose server may go away."""

    def __init__(self, site: Site, api: Api, exits: ExitStack, **body: Any) -> None:
        self.conversation = site.stack.conversation()
        headers = {"authorization": f"Bearer {site.stack.secrets.tenant}"}
        http = exits.enter_context(httpx.Client(base_url=api.url, headers=headers, timeout=60))
        asked = body | {"input": "hello", "stream": True, "conversation": self.conversation}
        self._answer = exits.enter_context(http.stream("POST", "/v1/responses", json=asked))
        self._events = sse(self._answer)
        self.seen: Events = [next(self._events)]
        self.turn = str(self.seen[0]["response"]["id"])

    def read_words(self) -> None:
        while len(deltas(self.seen).split()) < WORDS:
            self.seen.append(next(self._events))

    def read_on(self) -> Events:
        """As far as it goes."""
        try:
            for event in self._events:
                self.seen.append(event)
        except httpx.TransportError:
            pass
        self.seen = said(self.seen)
        return self.seen


def pins(stack: Stack, conversation: str) -> list[int]:
    return [event.attempt for event in stack.events(conversation) if isinstance(event, TurnPinned)]


def partial_texts(stack: Stack, conversation: str) -> list[str]:
    return [event.partial_text for event in stack.events(conversation) if isinstance(event, AttemptFailed)]


def completions(stack: Stack, conversation: str) -> int:
    return sum(isinstance(event, TurnCompleted) for event in stack.events(conversation))


def begun_stream(site: Site, api: Api, exits: ExitStack) -> Reader:
    """That has read some words, which are stored."""
    reader = Reader(site, api, exits)
    reader.read_words()
    until(lambda: site.stored_text(reader.turn) == deltas(reader.seen), "what was said is stored")
    return reader


def begun_in_background(site: Site, engine: SimulatedEngine) -> tuple[str, str]:
    """Conversation and turn, of which some words are stored."""
    conversation = site.stack.conversation()
    turn = site.stack.post(input="hello", background=True, conversation=conversation).json()["id"]
    until(lambda: len(site.stored_text(turn).split()) == WORDS, "it has begun", RECOVERED_S)
    return conversation, turn


def test_the_api_is_killed_and_its_reader_gets_the_rest_from_another(
    site: Site, engine: SimulatedEngine, exits: ExitStack
) -> None:
    api = site.start_api(exits)
    reader = begun_stream(site, api, exits)
    api.kill()
    seen = reader.read_on()
    last = seen[-1]["sequence_number"]
    rest = resumed(site.stack, reader.turn, last)
    whole = engine.cold_text(engine.prompts[0])
    assert deltas(seen) + deltas(rest) == whole
    assert names(rest)[0] == "everturn.attempt"
    assert names(rest)[-1] == "response.completed"
    numbers = [event["sequence_number"] for event in rest]
    assert numbers == list(range(last + 1 + NUMBERS_APART, last + 1 + NUMBERS_APART + len(rest)))
    assert pins(site.stack, reader.conversation) == [1, 2]
    assert partial_texts(site.stack, reader.conversation) == [deltas(seen)]
    assert completions(site.stack, reader.conversation) == 1
    assert resumed(site.stack, reader.turn)[: len(seen)] == seen
    for number in range(len(seen)):
        assert resumed(site.stack, reader.turn, number) == seen[number + 1 :] + rest
    for place, event in enumerate(rest):
        assert resumed(site.stack, reader.turn, event["sequence_number"]) == rest[place + 1 :]


def test_a_reader_who_has_more_than_was_stored_is_sent_no_more_pieces_but_the_whole(
    site: Site, engine: SimulatedEngine, exits: ExitStack
) -> None:
    api = site.start_api(exits)
    reader = begun_stream(site, api, exits)
    api.kill()
    unknown = reader.read_on()[-1]["sequence_number"] + 7
    rest = resumed(site.stack, reader.turn, unknown)
    assert deltas(rest) == ""
    assert names(rest)[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert rest[-4]["text"] == engine.cold_text(engine.prompts[0])
    assert resumed(site.stack, reader.turn, unknown) == rest


def test_where_orphans_are_not_finished_the_turn_fails_with_what_it_had_said_as_evidence(
    site: Site, engine: SimulatedEngine, exits: ExitStack
) -> None:
    api = site.start_api(exits, on_disconnect="cancel")
    reader = begun_stream(site, api, exits)
    api.kill()
    seen = reader.read_on()
    site.until_status(reader.turn, "failed")
    events = site.stack.events(reader.conversation)
    assert isinstance(events[-1], TurnFailed)
    assert events[-1].code == "orphaned"
    assert partial_texts(site.stack, reader.conversation) == [deltas(seen)]
    assert site.stored_text(reader.turn) == ""
    for number in range(len(seen)):
        after = resumed(site.stack, reader.turn, number)
        assert after[:-1] == seen[number + 1 :]
        assert after[-1]["response"]["error"]["code"] == "orphaned"
    beyond = seen[-1]["sequence_number"] + 5
    assert [event["sequence_number"] for event in resumed(site.stack, reader.turn, beyond)] == [beyond + 1]


def test_an_api_that_is_stopped_hands_its_turn_over_before_its_lease_is_out(
    site: Site, engine: SimulatedEngine, exits: ExitStack
) -> None:
    api = site.start_api(exits, shutdown_s="0.2", turn_lease_s="600")
    reader = begun_stream(site, api, exits)
    api.signal(signal.SIGTERM)
    seen = reader.read_on()
    rest = resumed(site.stack, reader.turn, seen[-1]["sequence_number"])
    assert deltas(seen) + deltas(rest) == engine.cold_text(engine.prompts[0])
    assert names(rest)[-1] == "response.completed"


def test_an_api_that_was_frozen_finds_its_turn_finished_and_tells_its_reader_the_end(
    site: Site, engine: SimulatedEngine, exits: ExitStack
) -> None:
    api = site.start_api(exits)
    reader = begun_stream(site, api, exits)
    api.signal(signal.SIGSTOP)
    site.until_status(reader.turn, "completed")
    engine.faults.release.set()
    api.signal(signal.SIGCONT)
    seen = reader.read_on()
    assert names(seen)[-1] == "response.completed"
    assert len(names(seen)) == len(set(map(str, seen)))
    assert engine.cold_text(engine.prompts[0]).startswith(deltas(seen))
    assert completions(site.stack, reader.conversation) == 1


def test_the_pool_process_is_killed_and_another_attempt_answers(site: Site, engine: SimulatedEngine) -> None:
    conversation, turn = begun_in_background(site, engine)
    before = resumed_so_far(site, turn)
    for pid in working(site):
        os.kill(pid, signal.SIGKILL)
    site.until_status(turn, "completed")
    assert pins(site.stack, conversation) == [1, 2]
    assert [len(text.split()) for text in partial_texts(site.stack, conversation)] == [WORDS]
    whole = resumed(site.stack, turn)
    assert whole[: len(before)] == before
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    assert deltas(whole) == engine.cold_text(engine.prompts[0])


def test_the_whole_worker_is_killed_and_another_goes_on(site: Site, engine: SimulatedEngine) -> None:
    conversation, turn = begun_in_background(site, engine)
    site.worker.kill_main()
    site.start_worker()
    site.until_status(turn, "completed")
    assert completions(site.stack, conversation) == 1


def test_the_broker_forgets_everything(site: Site, engine: SimulatedEngine) -> None:
    engine.faults.hold_after = None
    site.stack.turn_bell.unheard = True
    turn = site.stack.post(input="hello", background=True).json()["id"]
    with client_of(site.broker.url()) as client:
        client.flushall()
    site.until_status(turn, "completed")


def test_it_is_cancelled_while_a_worker_runs_it(site: Site, engine: SimulatedEngine) -> None:
    conversation, turn = begun_in_background(site, engine)
    assert site.stack.http.post(f"/v1/responses/{turn}/cancel").json()["status"] == "cancelled"
    until(lambda: bool(engine.left), "the engine is left", RECOVERED_S)
    assert [len(text.split()) for text in partial_texts(site.stack, conversation)] == [WORDS]
    assert site.stack.ask("and now?", conversation=conversation)["status"] == "completed"


def working(site: Site) -> list[int]:
    """Pool processes that run a turn: those with a connection for it."""
    with site.stack.owner.begin() as conn:
        query = text(
            "SELECT DISTINCT application_name FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'everturn-turn-%'"
        )
        return [int(name.rpartition("-")[2]) for name in conn.execute(query).scalars()]


def resumed_so_far(site: Site, turn: str) -> Events:
    """What a reader is sent of a turn that stands still."""
    events: Events = []
    with site.stack.http.stream("GET", f"/v1/responses/{turn}", params={"stream": "true"}) as answer:
        for event in sse(answer):
            if event["type"] == "comment" and len(deltas(events).split()) == WORDS:
                return said(events)
            events.append(event)
    raise AssertionError(events)
