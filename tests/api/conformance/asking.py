"""How the cases that are told anew ask, with the official client, and what they find of every stream."""

from typing import Any

from openai import OpenAI
from openai.types.responses import Response

ENDS = ("response.completed", "response.incomplete", "response.failed")
PLACE = {
    "type": "object",
    "properties": {"location": {"type": "string", "description": "The name of a city"}},
}
WEATHER = {"type": "function", "name": "get_weather", "description": "Weather there", "parameters": PLACE}
TIME = {"type": "function", "name": "get_time", "description": "Time there", "parameters": PLACE}


def answered(client: OpenAI, asked: object, **more: Any) -> Response:
    told: Any = asked
    response: Response = client.responses.create(model="production", input=told, **more)
    assert response.id.startswith("resp_")
    return response


def streamed(client: OpenAI, asked: object, **more: Any) -> list[Any]:
    """Its events, of which the first is the creation, only the last an end, and all are of one response."""
    told: Any = asked
    stream: Any = client.responses.create(model="production", input=told, stream=True, **more)
    events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert events[0].response.status == "in_progress"
    assert [kind for kind in kinds if kind in ENDS] == [kinds[-1]]
    assert len({event.response.id for event in events if hasattr(event, "response")}) == 1
    assert all(isinstance(event.sequence_number, int) for event in events)
    assert all(event.item_id for event in events if hasattr(event, "item_id"))
    return events


def items(response: Response) -> list[Any]:
    """Of its output: any of the thirty kinds that the client has, or what the test says that it is."""
    return list(response.output)


def text_deltas(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def counted(response: Response) -> None:
    """It says how many tokens went in and came out."""
    usage = response.usage
    assert usage is not None
    assert usage.input_tokens > 0
    assert usage.output_tokens > 0
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
