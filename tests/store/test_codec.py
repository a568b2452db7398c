"""Stored events come back exactly as they were, today's and those of every release before."""

import json
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import Engine

from service.domain.errors import Internal, InvalidInput
from service.domain.events import Event, Sampling, TurnAsked, TurnCompleted, TurnPinned
from service.store import event_store
from service.store.codec import UNWRITTEN, EventRow, decode, encode, to_json_text
from service.store.event_readers import READERS, WRITTEN
from tests.store import histories
from tests.store.golden_events import GOLDEN, golden
from tests.store.strategies import events, of_type

GOLDEN_ROWS = sorted(Path(__file__).with_name("golden").glob("*.json"))


def stored(row: EventRow) -> EventRow:
    """The payload as a JSON column hands it back."""
    return replace(row, payload=json.loads(to_json_text(row.payload)))


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.name)
def test_every_kind_of_event_comes_back_exactly(kind: type[Event]) -> None:
    @settings(max_examples=60, deadline=None)
    @given(of_type(kind))
    def comes_back(event: Event) -> None:
        assert decode(stored(encode(event))) == event

    comes_back()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(event=events())
def test_any_event_comes_back_exactly_through_postgres(engine: Engine, event: Event) -> None:
    with engine.connect() as conn:
        histories.append(conn, event)
        [found] = event_store.read(conn, tenant=histories.ACME, stream=histories.CHAT)
    assert found == event
    assert type(found) is type(event)


def test_text_that_looks_escaped_is_not_unescaped() -> None:
    event = replace(histories.pinned(), reason="\uf8ff0000")
    assert decode(stored(encode(event))) == event


def test_words_and_token_ids_stand_outside_the_payload() -> None:
    row = encode(histories.completed())
    assert row.content == b"Paris."
    assert row.tokens == bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0])
    assert (row.payload["prompt_delta"], row.payload["output"]) == (3, 2)
    assert "text" not in row.payload


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_id_that_no_row_can_hold_is_refused(token: int) -> None:
    with pytest.raises(InvalidInput, match="token id"):
        encode(replace(histories.completed(), output=(token,)))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_refused(number: float) -> None:
    sampling = Sampling(max_output_tokens=1, temperature=number, top_p=1.0)
    with pytest.raises(InvalidInput, match="finite"):
        to_json_text(encode(replace(histories.started(), sampling=sampling)).payload)


def test_an_answer_without_a_limit_is_stored_in_a_schema_that_the_version_before_reads() -> None:
    free = replace(histories.started(), sampling=Sampling(max_output_tokens=None, temperature=1.0, top_p=1.0))
    row = stored(encode(free))
    assert (row.schema_number, row.payload["sampling"]["max_output_tokens"]) == (6, None)
    assert decode(row) == free


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(Internal, match=r"'turn\.dreamt' schema 1, .* no such event"):
        decode(EventRow(type="turn.dreamt", schema_number=1, payload={}))


def test_a_newer_schema_is_refused_with_the_way_out() -> None:
    row = replace(encode(histories.said("hi")), schema_number=99)
    with pytest.raises(Internal, match=r"schema 99, .* reads schemas 1 .*run that version or a later one"):
        decode(row)


@pytest.mark.parametrize(
    "damage",
    [
        {"payload": {}},
        {"payload": asdict(histories.said("x")) | {"role": "nobody"}},
        {"content": None},
        {"content": b"\xff"},
    ],
    ids=["fields gone", "unknown value", "text gone", "text not UTF-8"],
)
def test_a_damaged_row_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(Internal, match=r"'message\.accepted' event of schema 1 is damaged"):
        decode(replace(encode(histories.said("hi")), **damage))


@pytest.mark.parametrize("tokens", [None, b"", b"\0" * 24])
def test_token_ids_that_were_lost_or_added_are_refused(tokens: bytes | None) -> None:
    with pytest.raises(Internal, match=r"'turn\.completed' event of schema \d is damaged"):
        decode(replace(encode(histories.completed()), tokens=tokens))


def test_no_stored_name_is_a_python_path() -> None:
    assert all(name.islower() and "service" not in name for name, _ in READERS)
    assert {name for name, _ in READERS} == {kind.name for kind in get_args(Event)}


@pytest.mark.parametrize("path", GOLDEN_ROWS, ids=lambda path: path.stem)
def test_rows_of_earlier_releases_stay_readable(path: Path) -> None:
    row = golden_row(path)
    assert decode(row) == golden(row.type, row.schema_number)


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_what_is_written_has_a_golden_row(name: str) -> None:
    """A change of the stored form without a new schema number ends here; `sparse` are rows without the fields that are None."""
    folder = Path(__file__).with_name("golden")
    sparse = folder / f"{name}_v{WRITTEN[name]}_sparse.json"
    path = sparse if sparse.exists() else folder / f"{name}_v{WRITTEN[name]}.json"
    assert stored(encode(golden(name, WRITTEN[name]))) == golden_row(path)


def test_what_asks_without_labels_is_written_so_that_the_version_before_reads_it() -> None:
    path = Path(__file__).with_name("golden") / f"{TurnAsked.name}_v1.json"
    assert stored(encode(GOLDEN[TurnAsked.name])) == golden_row(path)


def test_a_pin_without_a_rebuild_is_written_so_that_the_version_before_reads_it() -> None:
    path = Path(__file__).with_name("golden") / f"{TurnPinned.name}_v4_sparse.json"
    assert stored(encode(GOLDEN[TurnPinned.name])) == golden_row(path)


@pytest.mark.parametrize("path", GOLDEN_ROWS, ids=lambda path: path.stem)
def test_every_schema_reads_a_field_that_is_not_there_as_none_where_it_may_be_unwritten(path: Path) -> None:
    row = golden_row(path)
    names = frozenset[str]().union(*UNWRITTEN.values())

    def left_out(value: Any) -> Any:
        match value:
            case dict():
                return {k: left_out(v) for k, v in value.items() if v is not None or k not in names}
            case list():
                return [left_out(one) for one in value]
            case _:
                return value

    assert decode(replace(row, payload=left_out(row.payload))) == golden(row.type, row.schema_number)


@pytest.mark.parametrize("kind", UNWRITTEN, ids=lambda kind: kind.__name__)
def test_a_field_that_may_be_unwritten_is_none_unless_it_is_given(kind: type) -> None:
    defaults = {field.name: field.default for field in fields(kind)}
    assert [defaults[name] for name in UNWRITTEN[kind]] == [None] * len(UNWRITTEN[kind])


def test_what_is_none_of_most_turns_takes_no_room_in_their_rows() -> None:
    loaded = histories.completed(loaded=histories.loaded(histories.V13, histories.NEW_ENGINE))
    for event in (histories.started(), histories.pinned(), loaded):
        assert UNWRITTEN[type(event)].isdisjoint(encode(event).payload)
    assert "top_logprobs" not in encode(histories.started()).payload["sampling"]
    assert "contract" not in encode(loaded).payload["loaded"]


def test_what_is_none_of_few_events_is_written() -> None:
    """Code of the version before, which may read beside this one, asks for it by name."""
    assert encode(histories.completed()).payload["loaded"] is None
    assert encode(histories.created()).payload["on_upgrade"] is None


def test_golden_events_cover_text_that_jsonb_refuses() -> None:
    completed = GOLDEN[TurnCompleted.name]
    assert isinstance(completed, TurnCompleted)
    assert "\x00" in completed.text
    assert "\ud800" in completed.text


def golden_row(path: Path) -> EventRow:
    document = json.loads(path.read_text())
    content, tokens = (
        None if document[part] is None else bytes.fromhex(document[part]) for part in ("content", "tokens")
    )
    return EventRow(**document | {"content": content, "tokens": tokens})


def test_no_sql_asks_whether_a_field_is_there() -> None:
    """It would tell a field that is None from one that is not written, which are the same."""
    schema = (Path(__file__).parents[2] / "migrations" / "schema.sql").read_text()
    sources = [schema, *(path.read_text() for path in Path(event_store.__file__).parent.glob("*.py"))]
    asked = re.compile(
        r"payload(?: -> '\w+'(?:::text)?)? \?[|&]? |jsonb_exists|payload -> '\w+'(?:::text)?\)? IS (?:NOT )?NULL"
    )
    assert [found for source in sources for found in asked.findall(source)] == []
