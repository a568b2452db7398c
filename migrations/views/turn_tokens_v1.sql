-- The token ids of each completed turn: what its prompt added to the window of the turn that it extends, and the answer.
-- Stored as little-endian uint32, the prompt's first.
CREATE VIEW audit.turn_tokens AS
SELECT
    position,
    tenant_id,
    stream AS conversation_id,
    payload ->> 'turn' AS turn_id,
    payload ->> 'extends' AS extends,
    audit.token_ids(substr(tokens, 1, 4 * CAST(payload ->> 'prompt_delta' AS integer))) AS prompt_added,
    audit.token_ids(substr(tokens, 4 * CAST(payload ->> 'prompt_delta' AS integer) + 1)) AS output
FROM public.events
WHERE type = 'turn.completed';
