-- Who took part in each completed turn, and where in the order of the flow they first part company.
-- KV of another revision is no divergence where a compatibility contract held: audit.contracts_used lists those turns.
-- An engine registers as its base, and with each adapter that it serves as (base, adapter): both are its own.
-- From events alone: artifact, engine and rebuild rows may vanish, and nothing here changes.
-- What stands in other rows of the turn is looked up by index, in subqueries: only where its column is asked for, and never by
-- sorting or hashing all turns of the log; contracts only where revisions differ. The engines and their adapters are few, and
-- joined as wholes.
CREATE OR REPLACE VIEW audit.turn_provenance AS
WITH facts AS (
    SELECT
        completed.position,
        completed.tenant_id,
        completed.stream AS conversation_id,
        completed.payload ->> 'turn' AS turn_id,
        completed.payload ->> 'attempt' AS attempt,
        completed.occurred_at AS completed_at,
        completed.payload ->> 'requested_revision' AS requested_revision,
        coalesce(completed.payload #>> '{loaded,producer}', completed.payload ->> 'engine') AS prefill_engine,
        coalesce(prefill_adapter.revision, prefill.payload ->> 'revision') AS prefill_revision,
        completed.payload #>> '{loaded,artifact}' AS artifact_id,
        completed.payload #>> '{loaded,revision}' AS artifact_revision,
        completed.payload ->> 'engine' AS decode_engine,
        completed.payload ->> 'engine_revision' AS decode_revision,
        coalesce(decode_adapter.revision, decode.payload ->> 'revision') AS decode_registered_revision,
        completed.payload ->> 'kv_source' AS kv_source,
        completed.payload ->> 'kv_reason' AS kv_reason,
        completed.payload ->> 'prompt_tokens' AS prompt_tokens,
        completed.payload ->> 'local_tokens' AS tokens_local,
        completed.payload #>> '{loaded,tokens}' AS tokens_loaded,
        completed.payload ->> 'output' AS output_tokens,
        decode_adapter.adapter
    FROM public.events AS completed
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
    LEFT JOIN (
        SELECT stream, payload ->> 'revision' AS revision, min(position) AS since
        FROM public.events WHERE tenant_id = 'fleet' AND type = 'adapter.served' GROUP BY 1, 2
    ) AS prefill_adapter
        ON prefill_adapter.stream
        = 'adapters/' || coalesce(completed.payload #>> '{loaded,producer}', completed.payload ->> 'engine')
        AND prefill_adapter.revision
        = coalesce(completed.payload #>> '{loaded,revision}', completed.payload ->> 'engine_revision')
        AND prefill_adapter.since < completed.position
    LEFT JOIN (
        SELECT stream, payload ->> 'revision' AS revision, min(payload ->> 'adapter') AS adapter, min(position) AS since
        FROM public.events WHERE tenant_id = 'fleet' AND type = 'adapter.served' GROUP BY 1, 2
    ) AS decode_adapter
        ON decode_adapter.stream = 'adapters/' || (completed.payload ->> 'engine')
        AND decode_adapter.revision = completed.payload ->> 'engine_revision'
        AND decode_adapter.since < completed.position
    WHERE completed.type = 'turn.completed'
)
SELECT
    facts.position,
    facts.tenant_id,
    facts.conversation_id,
    facts.turn_id,
    CAST(facts.attempt AS bigint) AS attempt,
    facts.completed_at,
    (
        SELECT started.payload ->> 'alias' FROM public.events AS started
        WHERE started.type = 'turn.started'
            AND started.tenant_id = facts.tenant_id AND started.payload ->> 'turn' = facts.turn_id
    ) AS alias,
    (
        SELECT started.payload ->> 'on_upgrade' FROM public.events AS started
        WHERE started.type = 'turn.started'
            AND started.tenant_id = facts.tenant_id AND started.payload ->> 'turn' = facts.turn_id
    ) AS on_upgrade,
    (
        SELECT started.payload ->> 'policy_level' FROM public.events AS started
        WHERE started.type = 'turn.started'
            AND started.tenant_id = facts.tenant_id AND started.payload ->> 'turn' = facts.turn_id
    ) AS policy_level,
    (
        SELECT pinned.payload ->> 'plan' FROM public.events AS pinned
        WHERE pinned.type = 'turn.pinned' AND pinned.tenant_id = facts.tenant_id
            AND pinned.payload ->> 'turn' = facts.turn_id AND pinned.payload ->> 'attempt' = facts.attempt
    ) AS plan,
    (
        SELECT pinned.payload ->> 'reason' FROM public.events AS pinned
        WHERE pinned.type = 'turn.pinned' AND pinned.tenant_id = facts.tenant_id
            AND pinned.payload ->> 'turn' = facts.turn_id AND pinned.payload ->> 'attempt' = facts.attempt
    ) AS plan_reason,
    facts.requested_revision,
    (
        SELECT pinned.payload ->> 'revision' FROM public.events AS pinned
        WHERE pinned.type = 'turn.pinned' AND pinned.tenant_id = facts.tenant_id
            AND pinned.payload ->> 'turn' = facts.turn_id AND pinned.payload ->> 'attempt' = facts.attempt
    ) AS pinned_revision,
    facts.prefill_engine,
    facts.prefill_revision,
    facts.artifact_id,
    facts.artifact_revision,
    facts.decode_engine,
    facts.decode_revision,
    facts.decode_registered_revision,
    facts.kv_source,
    facts.kv_reason,
    CAST(facts.prompt_tokens AS bigint) AS prompt_tokens,
    CAST(facts.tokens_local AS bigint) AS tokens_local,
    coalesce(CAST(facts.tokens_loaded AS bigint), 0) AS tokens_loaded,
    CAST(facts.output_tokens AS bigint) AS output_tokens,
    (
        SELECT CASE
            WHEN pinned.payload ->> 'revision' IS NULL
                THEN 'the attempt was never pinned'
            WHEN pinned.payload ->> 'revision' <> facts.requested_revision
                THEN 'pinned revision ' || (pinned.payload ->> 'revision')
                    || ' is not requested revision ' || facts.requested_revision
            WHEN facts.prefill_revision IS NULL
                THEN 'prefill engine ' || facts.prefill_engine || ' never registered'
            WHEN facts.prefill_revision <> facts.artifact_revision
                THEN 'prefill engine ' || facts.prefill_engine || ' registered as ' || facts.prefill_revision
                    || ', which is not artifact revision ' || facts.artifact_revision
            WHEN coalesce(facts.artifact_revision <> facts.decode_revision, false) AND NOT EXISTS (
                SELECT FROM audit.contracts_used AS used
                WHERE used.tenant_id = facts.tenant_id AND used.turn_id = facts.turn_id
                    AND used.attempt = CAST(facts.attempt AS bigint) AND used.breach IS NULL
            )
                THEN coalesce((
                    SELECT 'contract ' || used.contract_id || ': ' || used.breach FROM audit.contracts_used AS used
                    WHERE used.tenant_id = facts.tenant_id AND used.turn_id = facts.turn_id
                        AND used.attempt = CAST(facts.attempt AS bigint)
                ), 'artifact revision ' || facts.artifact_revision || ' is not decode revision ' || facts.decode_revision)
            WHEN facts.decode_registered_revision IS NULL
                THEN 'decode engine ' || facts.decode_engine || ' never registered'
            WHEN facts.decode_registered_revision <> facts.decode_revision
                THEN 'decode engine ' || facts.decode_engine || ' registered as ' || facts.decode_registered_revision
                    || ', which is not decode revision ' || facts.decode_revision
            WHEN facts.decode_revision <> facts.requested_revision
                THEN 'decode revision ' || facts.decode_revision || ' is not requested revision ' || facts.requested_revision
        END
        FROM (VALUES (true)) AS one (is_there)
        LEFT JOIN public.events AS pinned
            ON pinned.type = 'turn.pinned' AND pinned.tenant_id = facts.tenant_id
            AND pinned.payload ->> 'turn' = facts.turn_id AND pinned.payload ->> 'attempt' = facts.attempt
    ) AS first_divergence,
    CASE
        WHEN facts.artifact_id IS NULL
            THEN false
        WHEN facts.artifact_revision <> facts.decode_revision AND EXISTS (
            SELECT FROM audit.contracts_used AS used
            WHERE used.tenant_id = facts.tenant_id AND used.turn_id = facts.turn_id
                AND used.attempt = CAST(facts.attempt AS bigint) AND used.breach IS NULL
        )
            THEN coalesce(facts.prefill_revision <> facts.artifact_revision, false)
        ELSE facts.artifact_revision <> facts.decode_revision
            OR coalesce(facts.prefill_revision <> facts.decode_revision, false)
    END AS cross_revision,
    CASE WHEN facts.artifact_revision <> facts.decode_revision THEN (
        SELECT used.contract_id FROM audit.contracts_used AS used
        WHERE used.tenant_id = facts.tenant_id AND used.turn_id = facts.turn_id
            AND used.attempt = CAST(facts.attempt AS bigint)
    ) END AS contract_id,
    facts.adapter
FROM facts;
