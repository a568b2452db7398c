"""Every kind and field of OpenAI's items, parts, tools and forms is understood, or refused by its name: none is passed over.

The specification says which there are: one that it adds is refused until somebody has decided what it means here.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from service.api.items import parse_items
from service.api.wants import parse_wants
from service.domain.errors import InvalidInput
from service.domain.new_items import NewItem, Wants
from tests.api.test_contract import SPEC

SCHEMAS = SPEC["components"]["schemas"]
SOMETHING = {"something": "that is asked for"}
TEXT: dict[str, Any] = {"type": "input_text", "text": "a"}
SAID: dict[str, Any] = {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}
ITEMS: dict[str, dict[str, Any]] = {
    "EasyInputMessage": {"type": "message", "role": "user", "content": "a"},
    "InputMessage": {"type": "message", "role": "developer", "status": "completed", "content": [TEXT]},
    "OutputMessage": {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [SAID],
    },
    "FunctionToolCall": {
        "type": "function_call",
        "id": "fc_1",
        "status": "completed",
        "call_id": "call_1",
        "name": "f",
        "arguments": "{}",
    },
    "FunctionCallOutputItemParam": {
        "type": "function_call_output",
        "id": "fco_1",
        "status": "completed",
        "call_id": "call_1",
        "output": [TEXT],
    },
    "ReasoningItem": {
        "type": "reasoning",
        "id": "rs_1",
        "status": "completed",
        "summary": [{"type": "summary_text", "text": "s"}],
        "content": [{"type": "reasoning_text", "text": "r"}],
    },
}
"""With each of their fields that there is here."""
PARTS: dict[str, dict[str, Any]] = {"InputTextContent": TEXT, "OutputTextContent": SAID}
TOOL: dict[str, Any] = {"type": "function", "name": "f", "description": "d", "parameters": {}, "strict": True}
FORMS: dict[str, dict[str, Any]] = {
    "ResponseFormatText": {"type": "text"},
    "ResponseFormatJsonObject": {"type": "json_object"},
    "TextResponseFormatJsonSchema": {
        "type": "json_schema",
        "name": "n",
        "description": "d",
        "schema": {},
        "strict": True,
    },
}


def members(name: str) -> Iterator[str]:
    """The schemas of a union, and of the unions in it."""
    for one in SCHEMAS[name].get("oneOf", ()):
        inner = one["$ref"].rpartition("/")[2]
        if "oneOf" in SCHEMAS[inner]:
            yield from members(inner)
        else:
            yield inner


def kinds(*unions: str) -> set[str]:
    return {
        kind
        for union in unions
        for name in members(union)
        for kind in SCHEMAS[name].get("properties", {}).get("type", {}).get("enum", ())
    }


def unknown(known: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """Fields of the specification that there are none of here."""
    return [
        (name, field) for name in known for field in sorted(SCHEMAS[name]["properties"].keys() - known[name])
    ]


def brought(item: object) -> tuple[NewItem, ...]:
    return parse_items([item], "input")


def asked(tool: object = None, choice: object = None, form: object = None) -> Wants:
    return parse_wants(
        None if tool is None else [tool],
        choice,
        None if form is None else {"format": form},
        parallel_tool_calls=None,
    )


def refused(error: "pytest.ExceptionInfo[InvalidInput]", param: str) -> None:
    assert error.value.param == param
    assert f"'{param}'" in error.value.message


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_is_taken_with_each_field_that_there_is_here(name: str) -> None:
    assert len(brought(ITEMS[name])) == 1
    assert ITEMS[name].keys() <= SCHEMAS[name]["properties"].keys()


@pytest.mark.parametrize(("name", "field"), unknown(ITEMS))
def test_a_field_of_an_item_that_there_is_not_is_refused_by_its_name_and_taken_as_null(
    name: str, field: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        brought(ITEMS[name] | {field: SOMETHING})
    refused(error, f"input[0].{field}")
    assert brought(ITEMS[name] | {field: None}) == brought(ITEMS[name])


@pytest.mark.parametrize(("name", "field"), unknown(PARTS))
def test_a_field_of_a_part_that_there_is_not_is_refused_by_its_name(name: str, field: str) -> None:
    message = ITEMS["OutputMessage"] | {"content": [PARTS[name] | {field: SOMETHING}]}
    with pytest.raises(InvalidInput) as error:
        brought(message)
    refused(error, f"input[0].content[0].{field}")


@pytest.mark.parametrize(
    "kind", sorted(kinds("InputContent", "OutputMessageContent") - {"input_text", "output_text"})
)
def test_parts_of_other_kinds_are_refused_by_name(kind: str) -> None:
    with pytest.raises(InvalidInput) as error:
        brought(ITEMS["InputMessage"] | {"content": [{"type": kind}]})
    refused(error, "input[0].content[0].type")


@pytest.mark.parametrize(
    "kind", sorted(kinds("InputItem") - {str(known["type"]) for known in ITEMS.values()})
)
def test_items_of_other_kinds_are_refused_by_name(kind: str) -> None:
    with pytest.raises(InvalidInput) as error:
        brought({"type": kind})
    refused(error, "input[0].type")


def test_a_tool_is_taken_with_each_field_that_there_is_here() -> None:
    assert asked(TOOL).tools
    assert SCHEMAS["FunctionTool"]["properties"].keys() >= TOOL.keys()


@pytest.mark.parametrize("field", [field for _, field in unknown({"FunctionTool": TOOL})])
def test_a_field_of_a_tool_that_there_is_not_is_refused_by_its_name(field: str) -> None:
    with pytest.raises(InvalidInput) as error:
        asked(TOOL | {field: SOMETHING})
    refused(error, f"tools[0].{field}")
    assert asked(TOOL | {field: None}) == asked(TOOL)


@pytest.mark.parametrize("kind", sorted(kinds("Tool") - {"function"}))
def test_tools_of_other_kinds_are_refused_by_name(kind: str) -> None:
    with pytest.raises(InvalidInput) as error:
        asked({"type": kind})
    refused(error, "tools[0].type")


@pytest.mark.parametrize("kind", sorted(kinds("ToolChoiceParam") - {"function"}))
def test_choices_of_other_tools_are_refused_by_name(kind: str) -> None:
    with pytest.raises(InvalidInput) as error:
        asked(TOOL, {"type": kind, "name": "f"})
    refused(error, "tool_choice")


@pytest.mark.parametrize("choice", [*SCHEMAS["ToolChoiceOptions"]["enum"], {"type": "function", "name": "f"}])
def test_the_other_choices_are_taken(choice: object) -> None:
    assert asked(TOOL, choice).tool_choice


def test_a_choice_of_none_is_known_where_there_are_no_tools_either() -> None:
    assert asked(choice="none").tool_choice == '"none"'


@pytest.mark.parametrize("name", list(members("TextResponseFormatConfiguration")))
def test_every_form_of_text_is_taken_with_each_field_that_there_is_here(name: str) -> None:
    asked(form=FORMS[name])
    assert SCHEMAS[name]["properties"].keys() == FORMS[name].keys()
