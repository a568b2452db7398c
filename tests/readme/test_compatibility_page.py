"""The compatibility page names every parameter of OpenAI's that is not there."""

import re
from pathlib import Path

import pytest

from service.api import chat_schemas, schemas
from service.domain.new_items import LABELS

PAGE = Path(__file__).parents[2] / "docs/openai-compatibility.md"


def tables() -> tuple[str, str]:
    """The first columns of those of responses and of chat completions."""
    section = PAGE.read_text().partition("## Parameters that are not there\n")[2].partition("\n## ")[0]
    responses, _, chat = section.partition("Of chat completions")
    return _first_columns(responses), _first_columns(chat)


def _first_columns(text: str) -> str:
    return "\n".join(row.split("|")[1] for row in text.splitlines() if re.match(r"\| `", row))


@pytest.mark.parametrize("name", sorted(schemas.REFUSED | schemas.WITHOUT_EFFECT.keys()))
def test_what_responses_do_not_have_is_on_it(name: str) -> None:
    assert f"`{name}`" in tables()[0]


@pytest.mark.parametrize("name", sorted(chat_schemas.REFUSED | chat_schemas.WITHOUT_EFFECT.keys()))
def test_what_chat_completions_do_not_have_is_on_it(name: str) -> None:
    assert f"`{name}`" in tables()[1]


def test_nothing_is_on_it_that_is_there() -> None:
    here = (set(schemas.ResponseBody.model_fields), set(chat_schemas.ChatBody.model_fields))
    for column, fields in zip(tables(), here, strict=True):
        assert not fields & set(re.findall(r"`([^`]+)`", column))


def test_what_is_told_back_is_on_it() -> None:
    for name in LABELS:
        assert f"`{name}`" in PAGE.read_text()
