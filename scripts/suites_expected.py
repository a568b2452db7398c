"""What of the public suites is not run here, which model a case is asked of, and each deviation with its reason: nothing else may fail."""

from dataclasses import dataclass

CASES = "tests/integration/"
FOLDERS = ("conversations", "responses")
"""Of OGX's integration tests: those of the APIs that both have. Each of their cases is run, or left out for a reason below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    cases: tuple[str, ...]
    """As fnmatch has them."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    cases: tuple[str, ...]
    says: str
    """Stands in what the failed case says: a case that fails for another reason is none of these."""
    why: str


OPEN_RESPONSES_LEFT_OUT = (
    LeftOut(cases=("websocket-*",), why="responses over WebSockets: there is HTTP alone here"),
)

OPEN_RESPONSES_SCRIPTED = ("tool-calling", "function-call-*")
"""Cases that need an answer which only the scripted model gives."""

OPEN_RESPONSES_DEVIATIONS = (
    Deviation(
        cases=("image-input",),
        says="'input[0].content[1].type' is 'input_image'",
        why="images are not taken: 400 that names the part",
    ),
    Deviation(
        cases=("file-input",),
        says="'input[0].content[1].type' is 'input_file'",
        why="files are not taken: 400 that names the part",
    ),
)

OGX_LEFT_OUT = (
    LeftOut(
        cases=("*::*web_search*", "*max_iterations_exceeded*"),
        why="OGX's own tool: web search",
    ),
    LeftOut(cases=("*::*file_search*", "*output_list_file*"), why="OGX's own tool and store: files"),
    LeftOut(
        cases=(
            *("*mcp_tool*", "*multi_turn_tool_execution*"),
            "responses/test_mcp_authentication.py::*",
        ),
        why="OGX calls the tools of MCP servers itself; Everturn hands calls to its client",
    ),
    LeftOut(cases=("*guardrails*",), why="OGX's own: guardrails"),
    LeftOut(cases=("*guided_choice*",), why="OGX passes on whatever else its vLLM provider takes"),
    LeftOut(
        cases=("responses/test_compact_responses.py::*",),
        why="`/v1/responses/compact` and `context_management`: a summary is no history that could be replayed",
    ),
    LeftOut(
        cases=("responses/test_prompt_templates.py::*",),
        why="OGX's store of prompt templates, and `prompt`, which names one",
    ),
)

OGX_SCRIPTED = (
    "responses/test_basic_responses.py::*basic[*",
    "responses/test_basic_responses.py::*incremental_content*",
    "responses/test_basic_responses.py::*multi_turn[*",
    "responses/test_basic_responses.py::*function_tools*",
    "responses/test_conversation_responses.py::*basic_workflow*",
    "responses/test_conversation_responses.py::*context_loading*",
    "responses/test_file_search.py::test_response_text_format*",
    "responses/test_langchain_responses.py::*",
    "responses/test_langgraph_responses.py::*",
    "responses/test_openai_responses.py::*parallel_tool_calls*",
    "responses/test_responses_errors.py::*test_incomplete_response_has_no_error*",
    "responses/test_tool_responses.py::*",
)
"""Cases that need tools called or facts known; and two to whose questions a small model says thousands of words."""

_ALL = "responses/test_openai_responses.py::TestOpenAIResponses::test_openai_response_"

OGX_DEVIATIONS = (
    Deviation(
        cases=("*::test_conversation_item_delete",),
        says="assert deleted.id == item_id",
        why="as OpenAI's specification has it, the answer is the conversation",
    ),
    Deviation(
        cases=("*incomplete_details_length*",),
        says="assert 'max_output_tokens' == 'length'",
        why="OpenAI's specification has `max_output_tokens` for it; `length` is OGX's word",
    ),
    Deviation(
        cases=tuple(
            f"{_ALL}{case}*"
            for case in (
                *("streaming_includes_usage", "with_prompt_cache_key_streaming"),
                *("with_safety_identifier_streaming", "with_service_tier_auto_streaming"),
                *(
                    "with_service_tier_streaming[default]",
                    "with_top_logprobs_streaming",
                    "with_top_p_streaming",
                ),
                "with_truncation_disabled_streaming",
            )
        ),
        says="'ResponseContentPartAddedEvent' object has no attribute 'response_id'",
        why="OGX's own field: events of content parts have none in OpenAI's specification",
    ),
    Deviation(
        cases=(f"{_ALL}streaming_failed_error_code_is_spec_compliant",),
        says="Expected exactly one response.failed event, got 0",
        why="`truncation: auto` is there; OGX refuses it",
    ),
    Deviation(
        cases=(f"{_ALL}with_truncation_auto_error",), says="DID NOT RAISE", why="`truncation: auto` is there"
    ),
    Deviation(
        cases=(f"{_ALL}background_and_stream_mutually_exclusive",),
        says="DID NOT RAISE",
        why="a response in the background can be streamed, as OpenAI's can",
    ),
    Deviation(
        cases=(f"{_ALL}max_output_tokens_below_minimum",),
        says="DID NOT RAISE",
        why="an answer may be limited to less than 16 tokens, the least of OpenAI's specification",
    ),
    Deviation(
        cases=("*::test_cancel_completed_response_fails",),
        says="DID NOT RAISE",
        why="a response that has ended is answered as it stands, as by OpenAI when it was cancelled twice",
    ),
    Deviation(
        cases=(f"{_ALL}*stream_options*",),
        says="'stream_options' is not supported with this value",
        why="events are not padded (`include_obfuscation`): 400",
    ),
    Deviation(
        cases=(f"{_ALL}*service_tier*[priority]", f"{_ALL}with_service_tier_flex_streaming"),
        says="'service_tier' is not supported with this value",
        why="there is one tier: 400 for any but `auto` and `default`",
    ),
    Deviation(
        cases=("*invalid_base64_image_failure_code*",),
        says="'input[0].content[1].type' is 'input_image'",
        why="images are not taken: 400, before there is a stream",
    ),
    Deviation(
        cases=("responses/test_reasoning.py::*",),
        says="'reasoning' is not supported with this value",
        why="how much is reasoned cannot be asked of every template, and nothing is summed up: 400",
    ),
    Deviation(
        cases=("*::test_include_logprobs_streaming",),
        says="Expected no logprobs in the returned chunk (chunk.type='response.content_part.done')",
        why="the part is the one that the response will have, as in `response.output_text.done`",
    ),
    Deviation(
        cases=("*not_found_error",),
        says="assert expected_msg in str(exc_info.value)",
        why="a 404 that names the id, in words of ours and not of OGX's",
    ),
    Deviation(
        cases=("*::test_invalid_tool_choice_raises_bad_request",),
        says="missing required parameter: 'tools[0].name'",
        why="the request's tool is wrong too (it is one of chat completions), and is named first: 400",
    ),
)
