-- What each rebuild cost: tokens prefilled again, and seconds from the plan to the KV. From events.
-- What only the queue knew is null once its row has gone: `fence` counts who claimed it, `ran_seconds` is the worker's own time,
-- and `shared` says that it was prefilled for the turn of a relative, and cost nothing here but the wait.
CREATE OR REPLACE VIEW audit.rebuild_cost AS
SELECT
    rebuilt.position,
    rebuilt.tenant_id,
    rebuilt.stream AS conversation_id,
    rebuilt.payload ->> 'turn' AS turn_id,
    CAST(rebuilt.payload ->> 'attempt' AS bigint) AS attempt,
    rebuilt.payload ->> 'rebuild' AS rebuild_id,
    rebuilt.payload ->> 'artifact' AS artifact_id,
    rebuilt.payload ->> 'revision' AS revision,
    rebuilt.payload ->> 'producer' AS engine,
    CAST(rebuilt.payload ->> 'tokens' AS bigint) AS tokens,
    pinned.occurred_at AS decided_at,
    rebuilt.occurred_at AS rebuilt_at,
    extract(epoch FROM rebuilt.occurred_at - pinned.occurred_at) AS turn_waited_seconds,
    job.fence,
    extract(epoch FROM job.finished_at - job.started_at) AS ran_seconds,
    job.turn_id <> rebuilt.payload ->> 'turn' AS shared
FROM public.events AS rebuilt
LEFT JOIN public.events AS pinned
    ON pinned.type = 'turn.pinned'
    AND pinned.tenant_id = rebuilt.tenant_id
    AND pinned.payload ->> 'turn' = rebuilt.payload ->> 'turn'
    AND pinned.payload ->> 'attempt' = rebuilt.payload ->> 'attempt'
LEFT JOIN public.rebuilds AS job
    ON job.rebuild_id = rebuilt.payload ->> 'rebuild' AND job.tenant_id = rebuilt.tenant_id
WHERE rebuilt.type = 'kv.rebuilt';
