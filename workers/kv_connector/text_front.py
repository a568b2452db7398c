"""What the service asks of an engine's text side: prompts rendered, and answers taken apart, by the model's own means."""

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Lock
from typing import Any, TypeVar

from service.domain.errors import InvalidInput
from service.domain.evidence import TOLD_KEY
from workers.kv_connector.answer_stream import AnswerStream
from workers.kv_connector.answers import AnswerParsers, Wanted
from workers.kv_connector.rendering import Call, Carried, Message, load_tokenizer, render
from workers.kv_connector.text_identity import chat_template_of

T = TypeVar("T")


class TextFront:
    """One at a time: a fast tokenizer keeps how it treats control tokens as state."""

    def __init__(self) -> None:
        self._tokenizer: Any = None
        self._working = Lock()
        self._parsing: Any = None
        """Another, whose state nobody changes, for parsers that look things up while others render."""
        self._loading = Lock()

    async def render(self, app: Any, body: bytes, stop_token_ids: list[int]) -> object:
        document = _document(body)
        messages, carried = _messages(document)
        wanted = _wanted(document)

        def work(tokenizer: Any) -> object:
            parsers = _parsers(app)
            form = parsers.form(tokenizer, wanted)
            tools = [_without_strict(tool) for tool in wanted.tools]
            rendered = render(tokenizer, messages, carried, stop_token_ids, tools)
            return {
                "token_ids": list(rendered.token_ids),
                "mode": rendered.mode,
                "reason": rendered.reason,
                "max_model_len": app.state.vllm_config.model_config.max_model_len,
                "form": {
                    "structured_outputs": form.structured_outputs,
                    "skip_special_tokens": form.skip_special_tokens,
                    "parsed": form.parsed,
                },
                "reasoning_ended": parsers.reasoning_ended(
                    tokenizer, wanted, after_the_last(stop_token_ids, rendered.token_ids)
                ),
            }

        return await self._with_tokenizer(app, work)

    async def parse(self, app: Any, body: bytes) -> object:
        document = _document(body)
        wanted = _wanted(document)
        text, token_ids = document.get("text"), document.get("token_ids")
        if not isinstance(text, str):
            raise InvalidInput("'text' must be a string.", "text")
        if not isinstance(token_ids, list) or any(type(number) is not int for number in token_ids):
            raise InvalidInput("'token_ids' must hold whole numbers.", "token_ids")

        def work(tokenizer: Any) -> object:
            parsed = _parsers(app).parse(tokenizer, wanted, text, token_ids)
            return {
                "reasoning": parsed.reasoning,
                "reasoning_tokens": parsed.reasoning_tokens,
                "content": parsed.content,
                "calls": [{"name": name, "arguments": arguments} for name, arguments in parsed.calls],
            }

        return await self._with_tokenizer(app, work)

    async def telling(self, app: Any, body: bytes, stop_token_ids: Collection[int]) -> AnswerStream | None:
        """By what the answer to a request to generate is told apart while it comes; it is used in the event loop alone."""
        document = _document(body)
        wanted, prompt = _wanted(document.get(TOLD_KEY) or {}), document.get("token_ids")
        own = after_the_last(stop_token_ids, prompt if isinstance(prompt, list) else [])

        def work() -> AnswerStream | None:
            with self._loading:
                if self._parsing is None:
                    self._parsing = _load(app)
                return _parsers(app).stream(self._parsing, wanted, own)

        return await asyncio.to_thread(work)

    async def _with_tokenizer(self, app: Any, work: Callable[[Any], T]) -> T:
        def locked() -> T:
            with self._working:
                if self._tokenizer is None:
                    self._tokenizer = _load(app)
                return work(self._tokenizer)

        return await asyncio.to_thread(locked)


def _load(app: Any) -> Any:
    vllm_config = app.state.vllm_config
    template, given = chat_template_of(vllm_config), getattr(_args(app), "chat_template", None)
    if given is not None and given != template:
        raise InvalidInput(
            "The engine has a --chat-template that its revision does not know of. Give it as 'chat_template' in "
            "'kv_connector_extra_config' too, or start the engine by workers.launcher, which does.",
            "chat_template",
        )
    model_config = vllm_config.model_config
    return load_tokenizer(
        model_config.tokenizer,
        trust_remote_code=model_config.trust_remote_code,
        chat_template=template,
    )


def after_the_last(stops: Collection[int], prompt: Sequence[int]) -> Sequence[int]:
    """Of a prompt, what comes after all answers in it: that they had been reasoned out says nothing of this one."""
    ends = (place + 1 for place in range(len(prompt) - 1, -1, -1) if prompt[place] in stops)
    return prompt[next(ends, 0) :]


def _parsers(app: Any) -> AnswerParsers:
    return AnswerParsers(_args(app), app.state.vllm_config)


def _args(app: Any) -> Any:
    return getattr(app.state, "args", None)


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise InvalidInput(f"The body is not JSON: {error}.", "body") from error
    if not isinstance(document, Mapping):
        raise InvalidInput("The body must be a JSON object.", "body")
    return document


def _wanted(document: Mapping[str, Any]) -> Wanted:
    tools, form = document.get("tools") or [], document.get("response_format")
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise InvalidInput("'tools' must be a list of objects.", "tools")
    if form is not None and not isinstance(form, Mapping):
        raise InvalidInput("'response_format' must be an object.", "text.format")
    return Wanted(
        tools=tuple(tools),
        tool_choice=document.get("tool_choice", "auto" if tools else "none"),
        parallel_tool_calls=document.get("parallel_tool_calls", True) is True,
        response_format=form,
    )


def _without_strict(tool: Mapping[str, Any]) -> dict[str, Any]:
    """`strict` is for whoever holds the model to its schema; no template knows it."""
    function = {key: value for key, value in tool.get("function", {}).items() if key != "strict"}
    return {"type": "function", "function": function}


def _messages(document: Mapping[str, Any]) -> tuple[list[Message], Carried | None]:
    try:
        messages = [_message(message) for message in document["messages"]]
        carried = Carried(**document["carried"]) if document.get("carried") else None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(
            "The body must be {'messages': [{'role', 'content', ...}], 'carried': null or {'messages', 'last_token'}}: "
            f"{error}.",
            "body",
        ) from error
    if not all(map(_is_text, messages)):
        raise InvalidInput("'messages' must hold strings.", "messages")
    if carried and any(
        type(number) is not int or number < 0 for number in (carried.messages, carried.last_token)
    ):
        raise InvalidInput("'carried' must hold whole numbers.", "carried")
    if carried and not isinstance(carried.answer, str | None):
        raise InvalidInput("'carried.answer' must be a string.", "carried")
    return messages, carried


def _message(given: Mapping[str, Any]) -> Message:
    return Message(**dict(given) | {"calls": tuple(Call(**call) for call in given.get("calls", ()))})


def _is_text(message: Message) -> bool:
    optional = (message.reasoning, message.call_id)
    written = [message.role, message.content, *(part for part in optional if part is not None)]
    written += [part for call in message.calls for part in (call.id, call.name, call.arguments)]
    return all(isinstance(part, str) for part in written)
