"""What is retold from its chunks is what was told, however they were cut off, and whoever goes on from there."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from service.domain.cuts import MOST_UNKEPT, TAKEN_OVER, Chunk, Cuts, Retelling, Told, Unkept, item_of
from service.domain.events import TurnId
from service.domain.revision import RevisionDigest

REV = RevisionDigest("rev_" + "0" * 64)
Attempts = list[list[tuple[str, bool]]]
"""Of each attempt what it added, and whether it was stored after that."""

attempts: st.SearchStrategy[Attempts] = st.lists(
    st.lists(st.tuples(st.text("ab", max_size=3), st.booleans()), max_size=8), max_size=3
)


def tell(said: Attempts, unkept: Unkept, told: Told, first: int = 1) -> list[Chunk]:
    chunks: dict[int, Chunk] = {}
    for attempt, pieces in enumerate(said, first):
        told.begin(attempt, REV)
        unkept.begin(attempt, REV)
        text = ""
        for more, stored in pieces:
            text += more
            told.say(text)
            if more:
                unkept.say(more)
            if stored:
                chunks |= {chunk.number: chunk for chunk in unkept.chunks()}
                unkept.kept(chunks)
    return [*chunks.values(), *unkept.chunks()]


def retold(chunks: list[Chunk], *, direct: bool = True) -> Told:
    told = Told()
    Retelling(told, direct=direct).tell(chunks)
    return told


def state(cuts: Cuts) -> tuple[object, ...]:
    return cuts.pieces, cuts.announced, cuts.text, cuts.lost


@given(attempts)
def test_it_is_the_same_wherever_the_chunks_end(said: Attempts) -> None:
    told = Told()
    again = retold(tell(said, Unkept(), told))
    assert (state(again.cuts), again.text) == (state(told.cuts), told.text)


@given(attempts)
def test_chunks_are_numbered_without_a_gap_and_none_is_stored_twice(said: Attempts) -> None:
    chunks = tell(said, Unkept(), Told())
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert all(sum(chunk.pieces) == len(chunk.text) for chunk in chunks)


@given(attempts, attempts)
def test_a_second_process_goes_on_where_the_first_was_stored(first: Attempts, second: Attempts) -> None:
    stored = tell(first, Unkept(), Told())
    known, follower = Told(), Told()
    retelling = Retelling(known, direct=True)
    retelling.tell(stored)
    retelling.take_over()
    more = tell(second, Unkept(claim=1, number=retelling.next), known, first=len(first) + 1)
    watching = Retelling(follower, direct=True)
    for chunk in (*stored, *more):
        watching.tell([chunk])
    if second:
        assert (state(follower.cuts), follower.text) == (state(known.cuts), known.text)
    assert known.cuts.lost or known.cuts.pieces.count(TAKEN_OVER) == 1


def test_nobody_is_taken_over_from_who_had_no_readers_of_its_own() -> None:
    chunks = [chunk_of(0, 1, "a"), chunk_of(1, 2, "b")]
    assert TAKEN_OVER not in retold(chunks, direct=False).cuts.pieces
    assert retold(chunks, direct=True).cuts.pieces.count(TAKEN_OVER) == 1


def test_after_a_chunk_that_is_missing_nothing_is_told() -> None:
    assert retold([chunk_of(0, 0, "a"), chunk_of(2, 0, "c")]).text == "a"
    assert retold([chunk_of(1, 0, "a")]).text == ""


def test_what_may_be_sent_before_it_is_stored_has_an_end() -> None:
    unkept = Unkept()
    unkept.begin(1, REV)
    for _ in range(MOST_UNKEPT - 1):
        unkept.say("a")
    before = unkept.full
    unkept.say("a")
    at_the_end = unkept.full
    chunks = unkept.chunks()
    being_stored = unkept.full
    unkept.kept(chunk.number for chunk in chunks)
    assert [before, at_the_end, being_stored, unkept.full] == [False, True, True, False]


def test_an_answer_has_one_id_and_another_for_each_turn() -> None:
    ids = [item_of(TurnId(turn)) for turn in ("resp_1", "resp_1", "resp_2")]
    assert [one == other for one, other in pairwise(ids)] == [True, False]


def chunk_of(number: int, claim: int, text: str) -> Chunk:
    return Chunk(number=number, claim=claim, attempt=1, revision=REV, pieces=(len(text),), text=text)
