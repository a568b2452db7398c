"""Tools and forms of text that a request asks for: what of them is understood, and the rest refused by name."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from service.api.body import Body, StrictBody, parse
from service.domain.errors import InvalidInput
from service.domain.new_items import Wants

MOST_TOOLS = 128
CHOICES = ("none", "auto", "required")
NAME = r"^[a-zA-Z0-9_-]+$"
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=NAME)]
"""Of a form of text, and of a function in chat completions."""
FunctionName = Annotated[str, Field(min_length=1, max_length=128, pattern=NAME)]


class FunctionBody(StrictBody):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatFunctionBody(FunctionBody):
    name: Name


class JsonSchemaBody(StrictBody):
    type: Literal["json_schema"]
    name: Name
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


def parse_wants(
    tools: list[Any] | None,
    tool_choice: object,
    text: object,
    *,
    parallel_tool_calls: bool | None,
    function: type[FunctionBody] = FunctionBody,
) -> Wants:
    """Raises: InvalidInput: naming the field."""
    functions = [_function(function, tool, number) for number, tool in enumerate(tools or [])]
    if len(functions) > MOST_TOOLS:
        raise InvalidInput(f"'tools' may hold {MOST_TOOLS} tools at most, not {len(functions)}.", "tools")
    names = [function["name"] for function in functions]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"'tools' has more than one function '{name}'.", "tools")
    choice = _choice(tool_choice, names)
    form = _format(text)
    return Wants(
        tools=_json(functions) if functions else "",
        tool_choice=_json(choice) if functions or choice == "none" else "",
        text_format=_json(form) if form else "",
        parallel_tool_calls=parallel_tool_calls is not False,
    )


def _function(kind: type[FunctionBody], tool: object, number: int) -> dict[str, Any]:
    path = f"tools[{number}]"
    if not isinstance(tool, dict):
        raise InvalidInput(f"'{path}' must be an object.", path)
    if (named := tool.get("type")) != "function":
        raise InvalidInput(
            f"'{path}.type' is {named!r}; only tools of type 'function' are supported.",
            f"{path}.type",
            "unsupported_parameter",
        )
    body = _parsed(kind, tool, path)
    return {
        "type": "function",
        "name": body.name,
        "description": body.description,
        "parameters": body.parameters,
        "strict": bool(body.strict),
    }


def _choice(choice: object, names: list[str]) -> object:
    if choice in (None, "auto", "none"):
        return choice or "auto"
    if choice == "required":
        if not names:
            raise InvalidInput("'tool_choice' is 'required', and there are no 'tools'.", "tool_choice")
        return choice
    if isinstance(choice, dict) and choice.get("type") == "function" and set(choice) == {"type", "name"}:
        if choice["name"] not in names:
            raise InvalidInput(
                f"'tool_choice' names the function {choice['name']!r}, which is none of 'tools'.",
                "tool_choice",
            )
        return choice
    raise InvalidInput(
        f"'tool_choice' must be one of {', '.join(CHOICES)}, or {{'type': 'function', 'name': ...}}.",
        "tool_choice",
        "unsupported_parameter" if isinstance(choice, dict) else "invalid_value",
    )


def _format(text: object) -> dict[str, Any] | None:
    """None where the answer may be any text."""
    if text is None:
        return None
    if not isinstance(text, dict):
        raise InvalidInput("'text' must be an object.", "text")
    for key, value in text.items():
        if key != "format" and value is not None:
            raise InvalidInput(
                f"Unsupported parameter: 'text.{key}'.", f"text.{key}", "unsupported_parameter"
            )
    form = text.get("format")
    kind = form.get("type") if isinstance(form, dict) else None
    if form is None or form == {"type": "text"}:
        return None
    if form == {"type": "json_object"}:
        return {"type": "json_object"}
    if not isinstance(form, dict) or kind != "json_schema":
        raise InvalidInput(
            "'text.format' must be of type 'text', 'json_schema' or 'json_object'.", "text.format"
        )
    body = _parsed(JsonSchemaBody, form, "text.format")
    return {
        "type": "json_schema",
        "name": body.name,
        "description": body.description,
        "schema": body.schema_,
        "strict": bool(body.strict),
    }


def _parsed(kind: type[Body], document: Mapping[str, Any], path: str) -> Body:
    try:
        return parse(kind, {key: value for key, value in document.items() if value is not None})
    except InvalidInput as error:
        field = path if error.param is None else f"{path}.{error.param}"
        words = error.message.replace(f"'{error.param}'", f"'{field}'")
        raise InvalidInput(words, field, error.code) from error


def _json(value: object) -> str:
    """In one spelling: by it a window is known to have been made with the same tools."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
