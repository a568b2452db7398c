-- Where each KV artifact came from: the turn or the rebuild that published it. From events, so also of those deleted since.
CREATE VIEW audit.artifacts AS
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
WHERE type = 'kv.rebuilt';
