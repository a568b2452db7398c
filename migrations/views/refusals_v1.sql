-- Each time that a consumer would not read an artifact: which one, who asked, and why.
CREATE VIEW audit.refusals AS
SELECT
    position,
    tenant_id,
    stream AS conversation_id,
    payload ->> 'turn' AS turn_id,
    CAST(payload ->> 'attempt' AS bigint) AS attempt,
    occurred_at AS refused_at,
    payload #>> '{refusal,artifact}' AS artifact_id,
    payload #>> '{refusal,artifact_revision}' AS artifact_revision,
    payload #>> '{refusal,artifact_producer}' AS artifact_producer,
    payload ->> 'engine' AS engine,
    payload ->> 'engine_revision' AS engine_revision,
    payload #>> '{refusal,reason}' AS reason,
    payload #>> '{refusal,detail}' AS detail,
    ARRAY(SELECT jsonb_array_elements_text(payload #> '{refusal,differing}')) AS differing
FROM public.events
WHERE type = 'kv.refused';
