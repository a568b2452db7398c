-- Each plan: what was decided for an attempt and why, which policy held, who had set it, who had moved the alias there,
-- which step of a rollout had a say in it, the rebuild that the attempt waits for, and who was to prefill its prompt.
CREATE OR REPLACE VIEW audit.decisions AS
SELECT
    pinned.position,
    pinned.tenant_id,
    pinned.stream AS conversation_id,
    pinned.payload ->> 'turn' AS turn_id,
    CAST(pinned.payload ->> 'attempt' AS bigint) AS attempt,
    pinned.occurred_at AS decided_at,
    pinned.payload ->> 'plan' AS plan,
    pinned.payload ->> 'reason' AS reason,
    pinned.payload ->> 'revision' AS revision,
    pinned.payload ->> 'engine' AS engine,
    pinned.payload ->> 'offer' AS offered_artifact,
    CAST(pinned.payload ->> 'carry_tokens' AS boolean) AS carried_tokens,
    started.payload ->> 'on_upgrade' AS policy,
    CASE started.payload ->> 'policy_level'
        WHEN 'turn' THEN 'the request of this turn'
        WHEN 'conversation' THEN 'conversation ' || pinned.stream
        WHEN 'alias' THEN 'alias ' || (started.payload ->> 'alias')
        WHEN 'tenant' THEN 'tenant ' || pinned.tenant_id
        ELSE 'nobody: the default'
    END AS policy_set_by,
    started.payload ->> 'alias' AS alias,
    moved.payload ->> 'revision' AS alias_revision,
    moved.payload ->> 'by' AS alias_moved_by,
    moved.occurred_at AS alias_moved_at,
    pinned.payload ->> 'rollout' AS rollout_id,
    CAST(pinned.payload ->> 'rollout_step' AS bigint) AS rollout_step,
    pinned.payload ->> 'rebuild' AS rebuild_id,
    pinned.payload ->> 'prefill' AS prefill_engine
FROM public.events AS pinned
LEFT JOIN public.events AS started
    ON started.type = 'turn.started'
    AND started.tenant_id = pinned.tenant_id
    AND started.payload ->> 'turn' = pinned.payload ->> 'turn'
LEFT JOIN LATERAL (
    SELECT move.payload, move.occurred_at
    FROM public.events AS move
    WHERE move.tenant_id = 'fleet'
        AND move.stream = 'alias/' || (started.payload ->> 'alias')
        AND move.type = 'alias.moved'
        AND move.occurred_at <= pinned.occurred_at
    ORDER BY move.stream_version DESC
    LIMIT 1
) AS moved ON true
WHERE pinned.type = 'turn.pinned';
