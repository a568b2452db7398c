"""What vLLM's own parsers know of a model: how it is held to an answer's form, and what its answer is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from service.domain.errors import InvalidInput
from workers.kv_connector.answer_stream import AnswerStream

WAY_OUT = "start the engine with --enable-auto-tool-choice --tool-call-parser NAME"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """As OpenAI's chat completions have them."""

    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: Any = "none"
    parallel_tool_calls: bool = True
    response_format: Mapping[str, Any] | None = None

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def most_calls(self) -> int | None:
        """None for any number. Few of vLLM's parsers can hold a model to one call with 'auto'."""
        return None if self.parallel_tool_calls else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How the answer is to be generated, and whether it has to be parsed before anything of it is shown."""

    structured_outputs: Mapping[str, Any] | None
    skip_special_tokens: bool
    parsed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    reasoning: str | None
    reasoning_tokens: int
    content: str | None
    calls: tuple[tuple[str, str], ...]
    """Name and arguments of each."""


class AnswerParsers:
    """Of one engine, as its command line names them."""

    def __init__(self, args: Any, vllm_config: Any) -> None:
        self._model_config = vllm_config.model_config
        self._config = vllm_config.structured_outputs_config
        self._tool_parser: str | None = getattr(args, "tool_call_parser", None)
        self._reasoning_parser: str | None = self._config.reasoning_parser or None
        self._strict_level = getattr(args, "tool_strict_level", "auto")

    def form(self, tokenizer: Any, wanted: Wanted) -> Form:
        """Raises: InvalidInput: no parser for what is wanted, or a schema that vLLM cannot hold an answer to."""
        from vllm.exceptions import VLLMValidationError  # noqa: PLC0415 vLLM loads this once it serves

        parser = self._parser(tokenizer, wanted)
        if parser is None and wanted.response_format is None:
            return Form(structured_outputs=None, skip_special_tokens=True, parsed=False)
        field = "text.format.schema" if wanted.response_format else "tools"
        try:
            request = _request(wanted)
            if parser is not None:
                request = parser.adjust_request(request)
            params = request.extract_structured_outputs()
            if params is not None:
                self._check(params, tokenizer)
        except (VLLMValidationError, ValueError, TypeError) as error:
            raise InvalidInput(
                f"'{field}' is no schema that answers can be held to: {_line(error)}.", field
            ) from error
        return Form(
            structured_outputs=None if params is None else _plain(params),
            skip_special_tokens=bool(request.skip_special_tokens),
            parsed=parser is not None,
        )

    def parse(self, tokenizer: Any, wanted: Wanted, text: str, token_ids: Sequence[int]) -> Parsed:
        """Raises: InvalidInput: no parser for what is wanted."""
        parser = self._parser(tokenizer, wanted)
        if parser is None:
            return Parsed(reasoning=None, reasoning_tokens=0, content=text, calls=())
        request = parser.adjust_request(_request(wanted))
        reasoning, content, calls = parser.parse(
            text, request, enable_auto_tools=True, model_output_token_ids=token_ids
        )
        return Parsed(
            reasoning=reasoning,
            reasoning_tokens=parser.count_reasoning_tokens(token_ids) if reasoning else 0,
            content=content,
            calls=tuple((call.name, call.arguments) for call in calls or ())[: wanted.most_calls],
        )

    def reasoning_ended(self, tokenizer: Any, wanted: Wanted, prompt_token_ids: Sequence[int]) -> bool | None:
        """Before an answer begins, by what of its prompt belongs to it. None where no reasoning is looked for."""
        parser = None if self._reasoning_parser is None else self._parser(tokenizer, wanted)
        return None if parser is None else bool(parser.is_reasoning_end(list(prompt_token_ids)))

    def stream(self, tokenizer: Any, wanted: Wanted, prompt_token_ids: Sequence[int]) -> AnswerStream | None:
        """Of an answer while it is generated; None where it is what the model writes. Raises: InvalidInput: as `parse`."""
        parser = self._parser(tokenizer, wanted)
        if parser is None:
            return None
        markers = {token: text for text, token in tokenizer.get_added_vocab().items()}
        request = parser.adjust_request(_request(wanted))
        return AnswerStream(parser, request, prompt_token_ids, markers, wanted.most_calls)

    def _parser(self, tokenizer: Any, wanted: Wanted) -> Any:
        """None where the answer is what the model wrote."""
        from vllm.parser import ParserManager  # noqa: PLC0415 ditto
        from vllm.parser.abstract_parser import DelegatingParser  # noqa: PLC0415 ditto
        from vllm.tool_parsers import ToolParser  # noqa: PLC0415 ditto

        if not wanted.may_call and self._reasoning_parser is None:
            return None
        if wanted.tool_choice == "auto" and wanted.tools and self._tool_parser is None:
            raise InvalidInput(
                f"The engine cannot tell function calls from text with tool_choice 'auto': {WAY_OUT}, "
                "or pass tool_choice 'required' or a function.",
                "tools",
            )
        kind = ParserManager.get_parser(
            tool_parser_name=self._tool_parser if wanted.may_call else None,
            reasoning_parser_name=self._reasoning_parser,
            enable_auto_tools=True,
            model_name=self._model_config.model,
            tool_strict_level=self._strict_level,
        )
        if wanted.may_call and self._tool_parser is None:
            # A forced call needs no parser of the model's own: the answer is held to be its JSON.
            reasoning = ParserManager.get_reasoning_parser(self._reasoning_parser)
            kind = type(
                "Forced",
                (DelegatingParser,),
                {"tool_parser_cls": ToolParser, "reasoning_parser_cls": reasoning},
            )
        return (
            None if kind is None else kind(tokenizer, _request(wanted).tools, model_config=self._model_config)
        )

    def _check(self, params: Any, tokenizer: Any) -> None:
        """As the engine would, but before it has begun."""
        from vllm.sampling_params import SamplingParams  # noqa: PLC0415 ditto

        copied = type(params)(**_plain(params))
        sampling = SamplingParams(structured_outputs=copied)
        sampling.verify(self._model_config, None, self._config, tokenizer)


def _request(wanted: Wanted) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: PLC0415 ditto
        ChatCompletionRequest,
    )

    calls = {
        "tools": list(wanted.tools),
        "tool_choice": wanted.tool_choice,
        "parallel_tool_calls": wanted.parallel_tool_calls,
    }
    return ChatCompletionRequest.model_validate(
        {"messages": [{"role": "user", "content": ""}], "response_format": wanted.response_format}
        | (calls if wanted.tools else {})
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _plain(params: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in asdict(params).items()
        if not name.startswith("_") and value is not None and value is not False
    }
