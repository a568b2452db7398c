-- The token ids of each completed turn: what its prompt added to the window of the turn that it extends, and the answer.
-- Stored as little-endian uint32, the prompt's first; null where they were erased.
CREATE OR REPLACE VIEW audit.turn_tokens AS
SELECT
    completed.position,
    completed.tenant_id,
    completed.stream AS conversation_id,
    completed.payload ->> 'turn' AS turn_id,
    completed.payload ->> 'extends' AS extends,
    audit.token_ids(substr(kept.tokens, 1, 4 * CAST(completed.payload ->> 'prompt_delta' AS integer)))
        AS prompt_added,
    audit.token_ids(substr(kept.tokens, 4 * CAST(completed.payload ->> 'prompt_delta' AS integer) + 1))
        AS output
FROM public.events AS completed
LEFT JOIN public.event_contents AS kept USING (tenant_id, stream, stream_version)
WHERE completed.type = 'turn.completed';
