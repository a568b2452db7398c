-- Who took part in each completed turn, and where in the order of the flow they first part company.
-- KV of another revision is no divergence where a compatibility contract held: audit.contracts_used lists those turns.
-- An engine registers as its base, and with each adapter that it serves as (base, adapter): both are its own.
-- From events alone: artifact, engine and rebuild rows may vanish, and nothing here changes.
CREATE OR REPLACE VIEW audit.turn_provenance AS
WITH facts AS (
    SELECT
        completed.position,
        completed.tenant_id,
        completed.stream AS conversation_id,
        completed.payload ->> 'turn' AS turn_id,
        CAST(completed.payload ->> 'attempt' AS bigint) AS attempt,
        completed.occurred_at AS completed_at,
        started.payload ->> 'alias' AS alias,
        started.payload ->> 'on_upgrade' AS on_upgrade,
        started.payload ->> 'policy_level' AS policy_level,
        pinned.payload ->> 'plan' AS plan,
        pinned.payload ->> 'reason' AS plan_reason,
        completed.payload ->> 'requested_revision' AS requested_revision,
        pinned.payload ->> 'revision' AS pinned_revision,
        coalesce(completed.payload #>> '{loaded,producer}', completed.payload ->> 'engine') AS prefill_engine,
        coalesce(prefill_adapter.revision, prefill.payload ->> 'revision') AS prefill_revision,
        completed.payload #>> '{loaded,artifact}' AS artifact_id,
        completed.payload #>> '{loaded,revision}' AS artifact_revision,
        completed.payload ->> 'engine' AS decode_engine,
        completed.payload ->> 'engine_revision' AS decode_revision,
        coalesce(decode_adapter.revision, decode.payload ->> 'revision') AS decode_registered_revision,
        completed.payload ->> 'kv_source' AS kv_source,
        completed.payload ->> 'kv_reason' AS kv_reason,
        CAST(completed.payload ->> 'prompt_tokens' AS bigint) AS prompt_tokens,
        CAST(completed.payload ->> 'local_tokens' AS bigint) AS tokens_local,
        coalesce(CAST(completed.payload #>> '{loaded,tokens}' AS bigint), 0) AS tokens_loaded,
        CAST(completed.payload ->> 'output' AS bigint) AS output_tokens,
        decode_adapter.adapter
    FROM public.events AS completed
    LEFT JOIN public.events AS started
        ON started.type = 'turn.started'
        AND started.tenant_id = completed.tenant_id
        AND started.payload ->> 'turn' = completed.payload ->> 'turn'
    LEFT JOIN public.events AS pinned
        ON pinned.type = 'turn.pinned'
        AND pinned.tenant_id = completed.tenant_id
        AND pinned.payload ->> 'turn' = completed.payload ->> 'turn'
        AND pinned.payload ->> 'attempt' = completed.payload ->> 'attempt'
    LEFT JOIN public.events AS prefill
        ON prefill.type = 'engine.registered'
        AND prefill.tenant_id = 'fleet'
        AND prefill.stream
        = 'engine/' || coalesce(completed.payload #>> '{loaded,producer}', completed.payload ->> 'engine')
        AND prefill.stream_version = 1
    LEFT JOIN public.events AS decode
        ON decode.type = 'engine.registered'
        AND decode.tenant_id = 'fleet'
        AND decode.stream = 'engine/' || (completed.payload ->> 'engine')
        AND decode.stream_version = 1
    LEFT JOIN LATERAL (
        SELECT served.payload ->> 'revision' AS revision
        FROM public.events AS served
        WHERE served.tenant_id = 'fleet'
            AND served.stream = 'adapters/' || coalesce(completed.payload #>> '{loaded,producer}', completed.payload ->> 'engine')
            AND served.type = 'adapter.served'
            AND served.payload ->> 'revision' = coalesce(completed.payload #>> '{loaded,revision}', completed.payload ->> 'engine_revision')
            AND served.position < completed.position
        ORDER BY served.stream_version
        LIMIT 1
    ) AS prefill_adapter ON true
    LEFT JOIN LATERAL (
        SELECT served.payload ->> 'revision' AS revision, served.payload ->> 'adapter' AS adapter
        FROM public.events AS served
        WHERE served.tenant_id = 'fleet'
            AND served.stream = 'adapters/' || (completed.payload ->> 'engine')
            AND served.type = 'adapter.served'
            AND served.payload ->> 'revision' = completed.payload ->> 'engine_revision'
            AND served.position < completed.position
        ORDER BY served.stream_version
        LIMIT 1
    ) AS decode_adapter ON true
    WHERE completed.type = 'turn.completed'
)
SELECT
    facts.position,
    facts.tenant_id,
    facts.conversation_id,
    facts.turn_id,
    facts.attempt,
    facts.completed_at,
    facts.alias,
    facts.on_upgrade,
    facts.policy_level,
    facts.plan,
    facts.plan_reason,
    facts.requested_revision,
    facts.pinned_revision,
    facts.prefill_engine,
    facts.prefill_revision,
    facts.artifact_id,
    facts.artifact_revision,
    facts.decode_engine,
    facts.decode_revision,
    facts.decode_registered_revision,
    facts.kv_source,
    facts.kv_reason,
    facts.prompt_tokens,
    facts.tokens_local,
    facts.tokens_loaded,
    facts.output_tokens,
    CASE
        WHEN pinned_revision IS NULL
            THEN 'the attempt was never pinned'
        WHEN pinned_revision <> requested_revision
            THEN 'pinned revision ' || pinned_revision || ' is not requested revision ' || requested_revision
        WHEN prefill_revision IS NULL
            THEN 'prefill engine ' || facts.prefill_engine || ' never registered'
        WHEN prefill_revision <> facts.artifact_revision
            THEN 'prefill engine ' || facts.prefill_engine || ' registered as ' || prefill_revision
                || ', which is not artifact revision ' || facts.artifact_revision
        WHEN facts.artifact_revision <> facts.decode_revision AND used.breach IS NOT NULL
            THEN 'contract ' || used.contract_id || ': ' || used.breach
        WHEN facts.artifact_revision <> facts.decode_revision AND used.contract_id IS NULL
            THEN 'artifact revision ' || facts.artifact_revision || ' is not decode revision ' || facts.decode_revision
        WHEN decode_registered_revision IS NULL
            THEN 'decode engine ' || facts.decode_engine || ' never registered'
        WHEN decode_registered_revision <> facts.decode_revision
            THEN 'decode engine ' || facts.decode_engine || ' registered as ' || decode_registered_revision
                || ', which is not decode revision ' || facts.decode_revision
        WHEN facts.decode_revision <> requested_revision
            THEN 'decode revision ' || facts.decode_revision || ' is not requested revision ' || requested_revision
    END AS first_divergence,
    CASE
        WHEN facts.artifact_id IS NULL
            THEN false
        WHEN used.contract_id IS NOT NULL AND used.breach IS NULL
            THEN coalesce(prefill_revision <> facts.artifact_revision, false)
        ELSE facts.artifact_revision <> facts.decode_revision
            OR coalesce(prefill_revision <> facts.decode_revision, false)
    END AS cross_revision,
    used.contract_id,
    facts.adapter
FROM facts
-- One turn at a time, and only for those that read another revision's KV: OFFSET keeps it from being joined as a whole.
LEFT JOIN LATERAL (
    SELECT contract_id, breach
    FROM audit.contracts_used
    WHERE tenant_id = facts.tenant_id AND turn_id = facts.turn_id AND attempt = facts.attempt
        AND facts.artifact_revision <> facts.decode_revision
    OFFSET 0
) AS used ON true;
