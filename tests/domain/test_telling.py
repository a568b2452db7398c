"""An answer's line gives back its items, read whole or in whatever pieces it was told in; and its ids are known before it is."""

from hypothesis import given
from hypothesis import strategies as st

from service.domain.events import ItemId, TurnId
from service.domain.items import ItemKind, Part
from service.domain.telling import MARK, Begun, Fragment, Ids, Reader, Telling, line_of, parts, plain, words

TEXT = st.text(alphabet="ab\x1e\x1fmrc\n", max_size=6)
WORD = st.text(alphabet="ab\x1e\x1fmrc\n", min_size=1, max_size=6)
fragments = st.lists(
    st.one_of(
        st.builds(Fragment, kind=st.sampled_from([ItemKind.MESSAGE, ItemKind.REASONING]), text=WORD),
        st.builds(Fragment, kind=st.just(ItemKind.FUNCTION_CALL), text=TEXT, function=TEXT),
    ),
    max_size=8,
)


def told(given_: list[Fragment]) -> tuple[Telling, list[str]]:
    """And what each fragment added to the line."""
    telling, pieces = Telling(), list[str]()
    for fragment in given_:
        before = telling.line
        telling.add(fragment)
        assert telling.line.startswith(before)
        pieces.append(telling.line[len(before) :])
    return telling, pieces


def joined(given_: list[Fragment]) -> list[Part]:
    items: list[Part] = []
    for one in given_:
        if one.function is None and items and items[-1].kind is one.kind:
            items[-1] = Part(kind=one.kind, text=items[-1].text + one.text, function=items[-1].function)
        else:
            items.append(Part(kind=one.kind, text=one.text, function=one.function or ""))
    return items


@given(fragments)
def test_the_items_are_read_back_whole_and_are_the_same_line_again(given_: list[Fragment]) -> None:
    telling, _ = told(given_)
    assert list(parts(telling.line)) == joined(given_)
    assert line_of(parts(telling.line)) == telling.line
    assert words(telling.line) == "".join(one.text for one in given_)


@given(fragments)
def test_read_in_the_pieces_that_were_told_it_says_the_same(given_: list[Fragment]) -> None:
    telling, pieces = told(given_)
    reader = Reader()
    read = [one for piece in pieces for one in reader.read(piece)]
    assert [one for one in read if isinstance(one, Begun)] == [
        Begun(kind=part.kind, function=part.function) for part in joined(given_)
    ]
    assert "".join(one for one in read if isinstance(one, str)) == words(telling.line)


@given(st.text())
def test_a_plain_answer_is_one_message_and_its_line_its_text_but_for_marks(text: str) -> None:
    assert parts(plain(text)) == ((Part(kind=ItemKind.MESSAGE, text=text),) if text else ())
    assert plain(text) == text or MARK in text


def test_ids_follow_from_the_turn_and_the_order_of_kinds() -> None:
    ids = Ids(TurnId("resp_1"), ItemId("msg_1"))
    kinds = [ItemKind.REASONING, ItemKind.MESSAGE, ItemKind.FUNCTION_CALL, ItemKind.FUNCTION_CALL]
    named = ids.all([*kinds, ItemKind.MESSAGE, ItemKind.REASONING])
    assert [one.item for one in named] == ["rs_1", "msg_1", "fc_11", "fc_12", "msg_1_2", "rs_1_2"]
    assert [one.call for one in named] == [None, None, "call_11", "call_12", None, None]
