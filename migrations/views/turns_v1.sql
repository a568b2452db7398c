-- Every turn that was accepted, numbered within its conversation, with how it ended; `state` is 'running' until it has.
CREATE VIEW audit.turns AS
SELECT
    started.position,
    started.tenant_id,
    started.stream AS conversation_id,
    started.payload ->> 'turn' AS turn_id,
    row_number() OVER (PARTITION BY started.tenant_id, started.stream ORDER BY started.stream_version) AS turn_number,
    started.payload ->> 'alias' AS alias,
    CASE
        WHEN completed.position IS NOT NULL THEN 'completed'
        WHEN failed.position IS NOT NULL THEN 'failed'
        ELSE 'running'
    END AS state,
    completed.payload ->> 'engine_revision' AS revision,
    CAST(completed.payload ->> 'attempt' AS bigint) AS completed_attempt,
    completed.payload ->> 'finish_reason' AS finish_reason,
    CAST(completed.payload ->> 'prompt_tokens' AS bigint) AS prompt_tokens,
    CAST(completed.payload ->> 'output' AS bigint) AS output_tokens,
    failed.payload ->> 'code' AS failure_code,
    failed.payload ->> 'message' AS failure_message,
    started.occurred_at AS started_at,
    coalesce(completed.occurred_at, failed.occurred_at) AS ended_at,
    extract(epoch FROM coalesce(completed.occurred_at, failed.occurred_at) - started.occurred_at) AS seconds
FROM public.events AS started
LEFT JOIN public.events AS completed
    ON completed.type = 'turn.completed'
    AND completed.tenant_id = started.tenant_id
    AND completed.payload ->> 'turn' = started.payload ->> 'turn'
LEFT JOIN public.events AS failed
    ON failed.type = 'turn.failed'
    AND failed.tenant_id = started.tenant_id
    AND failed.payload ->> 'turn' = started.payload ->> 'turn'
WHERE started.type = 'turn.started';
