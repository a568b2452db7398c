"""What a conversation has been through makes its next turn no larger in the record."""

from statistics import mean

from sqlalchemy import text

from tests.api.stack import Stack

TURNS = 60
# Before PostgreSQL compresses any of it.
SIZES = text("""
    SELECT sum(length(payload::text) + coalesce(octet_length(content), 0) + coalesce(octet_length(tokens), 0)) AS bytes
    FROM (
        SELECT *, count(*) FILTER (WHERE type = 'message.accepted') OVER (ORDER BY stream_version) AS turn
        FROM events WHERE stream = :conversation
    ) AS event
    LEFT JOIN event_contents AS kept USING (tenant_id, stream, stream_version)
    WHERE turn > 0 GROUP BY turn ORDER BY turn
""")


def test_c6_a_late_turn_is_stored_in_as_many_bytes_as_an_early_one(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    for number in range(TURNS):
        stack.ask(f"question {number:03}", conversation=conversation)
    with stack.owner.connect() as conn:
        sizes = [float(size) for size in conn.execute(SIZES, {"conversation": conversation}).scalars()]
    assert len(sizes) == TURNS
    early, late = sizes[5:20], sizes[-15:]
    assert len(engine.prompts[-1]) > 8 * len(engine.prompts[5]), "the prompts do grow"
    assert mean(late) < 1.05 * mean(early)
    assert max(late) < 1.2 * min(early)
