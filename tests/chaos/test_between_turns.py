"""Everything that serves a conversation dies between two turns: both ways of going on find it, and its history is in the prompt."""

from openai import OpenAI

from tests.chaos.client import connect
from tests.chaos.rig import Rig


def test_a_conversation_and_a_response_are_gone_on_with_after_all_processes_were_killed(
    running: Rig, client: OpenAI
) -> None:
    chat = client.conversations.create().id
    first = client.responses.create(model="production", conversation=chat, input="one")
    other = client.responses.create(model="production", input="uno")
    running.kill_postgres()
    running.kill_api()
    running.mend()
    again = connect(running.url, running.secrets.tenant)
    second = again.responses.create(model="production", conversation=chat, input="two")
    continued = again.responses.create(model="production", previous_response_id=other.id, input="due")
    kept = again.responses.retrieve(first.id)
    items = again.conversations.items.list(chat, order="asc").data
    again.close()
    assert kept.output_text == first.output_text
    said = ["".join(part.text for part in item.content) for item in items]  # type: ignore[union-attr]
    assert said == ["one", first.output_text, "two", second.output_text]
    for answer, begun in ((second, first), (continued, other)):
        assert answer.status == "completed"
        assert answer.usage is not None
        assert begun.usage is not None
        assert answer.usage.input_tokens > begun.usage.total_tokens
