-- Where each KV artifact came from: the turn or the rebuild that published it. From events, so also of those deleted since.
CREATE OR REPLACE VIEW audit.artifacts AS
SELECT
    position,
    tenant_id,
    stream AS conversation_id,
    payload ->> 'published' AS artifact_id,
    payload ->> 'turn' AS turn_id,
    'turn' AS made_by,
    payload ->> 'engine' AS producer,
    payload ->> 'engine_revision' AS revision,
    occurred_at AS made_at
FROM public.events
WHERE type = 'turn.completed' AND payload ->> 'published' IS NOT NULL
UNION ALL
SELECT
    position,
    tenant_id,
    stream,
    payload ->> 'artifact',
    payload ->> 'turn',
    'rebuild',
    payload ->> 'producer',
    payload ->> 'revision',
    occurred_at
FROM public.events
WHERE type = 'kv.rebuilt' AND NOT EXISTS (
    -- Prefilled for the turn of a relative, whose it is.
    SELECT FROM public.rebuilds AS job
    WHERE job.rebuild_id = payload ->> 'rebuild' AND job.tenant_id = events.tenant_id AND job.turn_id <> payload ->> 'turn'
);
