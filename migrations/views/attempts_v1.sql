-- Every attempt at a turn, in order. Its number is its fence: what an earlier one brings after a later one was pinned is refused.
CREATE VIEW audit.attempts AS
SELECT
    pinned.position,
    pinned.tenant_id,
    pinned.stream AS conversation_id,
    pinned.payload ->> 'turn' AS turn_id,
    CAST(pinned.payload ->> 'attempt' AS bigint) AS attempt,
    pinned.payload ->> 'revision' AS revision,
    pinned.payload ->> 'engine' AS engine,
    CASE
        WHEN completed.position IS NOT NULL THEN 'completed'
        WHEN failed.position IS NOT NULL THEN 'failed'
        ELSE 'running'
    END AS outcome,
    failed.payload ->> 'reason' AS failure,
    pinned.occurred_at AS pinned_at,
    coalesce(completed.occurred_at, failed.occurred_at) AS ended_at
FROM public.events AS pinned
LEFT JOIN public.events AS completed
    ON completed.type = 'turn.completed'
    AND completed.tenant_id = pinned.tenant_id
    AND completed.payload ->> 'turn' = pinned.payload ->> 'turn'
    AND completed.payload ->> 'attempt' = pinned.payload ->> 'attempt'
LEFT JOIN public.events AS failed
    ON failed.type = 'attempt.failed'
    AND failed.tenant_id = pinned.tenant_id
    AND failed.payload ->> 'turn' = pinned.payload ->> 'turn'
    AND failed.payload ->> 'attempt' = pinned.payload ->> 'attempt'
WHERE pinned.type = 'turn.pinned';
