-- Each turn that was answered from KV of another revision under a compatibility contract, and whether that contract held:
-- `breach` is null where it was approved for these two revisions, and neither revoked nor over when the attempt was pinned.
CREATE VIEW audit.contracts_used AS
SELECT
    completed.position,
    completed.tenant_id,
    completed.stream AS conversation_id,
    completed.payload ->> 'turn' AS turn_id,
    CAST(completed.payload ->> 'attempt' AS bigint) AS attempt,
    completed.occurred_at AS completed_at,
    completed.payload #>> '{loaded,contract}' AS contract_id,
    completed.payload #>> '{loaded,artifact}' AS artifact_id,
    completed.payload #>> '{loaded,revision}' AS artifact_revision,
    completed.payload #>> '{loaded,producer}' AS prefill_engine,
    completed.payload ->> 'engine' AS decode_engine,
    completed.payload ->> 'engine_revision' AS decode_revision,
    CAST(completed.payload #>> '{loaded,tokens}' AS bigint) AS tokens_loaded,
    ARRAY(SELECT jsonb_array_elements_text(approved.payload #> '{terms,waived}')) AS waived,
    approved.payload #>> '{terms,reason}' AS reason,
    approved.payload #>> '{terms,approved_by}' AS approved_by,
    approved.occurred_at AS approved_at,
    to_timestamp(CAST(approved.payload #>> '{terms,ends_ms}' AS bigint) / 1000.0) AS ends_at,
    revoked.occurred_at AS revoked_at,
    CASE
        WHEN approved.position IS NULL
            THEN 'it was never approved'
        WHEN approved.payload #>> '{terms,producer}' <> completed.payload #>> '{loaded,revision}'
            THEN 'it is about KV of ' || (approved.payload #>> '{terms,producer}')
        WHEN approved.payload #>> '{terms,reader}' <> completed.payload ->> 'engine_revision'
            THEN 'it lets ' || (approved.payload #>> '{terms,reader}') || ' read'
        WHEN pinned.position IS NULL
            THEN 'the attempt was never pinned'
        WHEN pinned.occurred_at >= to_timestamp(CAST(approved.payload #>> '{terms,ends_ms}' AS bigint) / 1000.0)
            THEN 'it had ended before the attempt was pinned'
        WHEN pinned.occurred_at >= revoked.occurred_at
            THEN 'it was revoked before the attempt was pinned'
    END AS breach
FROM public.events AS completed
LEFT JOIN public.events AS pinned
    ON pinned.type = 'turn.pinned'
    AND pinned.tenant_id = completed.tenant_id
    AND pinned.payload ->> 'turn' = completed.payload ->> 'turn'
    AND pinned.payload ->> 'attempt' = completed.payload ->> 'attempt'
LEFT JOIN public.events AS approved
    ON approved.type = 'contract.approved'
    AND approved.tenant_id = 'fleet'
    AND approved.stream = 'contract/' || (completed.payload #>> '{loaded,contract}')
    AND approved.stream_version = 1
LEFT JOIN public.events AS revoked
    ON revoked.type = 'contract.revoked'
    AND revoked.tenant_id = 'fleet'
    AND revoked.stream = 'contract/' || (completed.payload #>> '{loaded,contract}')
    AND revoked.stream_version = 2
WHERE completed.type = 'turn.completed' AND completed.payload #>> '{loaded,contract}' IS NOT NULL;
