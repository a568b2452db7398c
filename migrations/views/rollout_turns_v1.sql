-- Each attempt that was planned while its alias was in a rollout: at which step of it, and on which of the two revisions.
CREATE VIEW audit.rollout_turns AS
SELECT
    pinned.position,
    pinned.payload ->> 'rollout' AS rollout_id,
    CAST(pinned.payload ->> 'rollout_step' AS bigint) AS step,
    pinned.tenant_id,
    pinned.stream AS conversation_id,
    pinned.payload ->> 'turn' AS turn_id,
    CAST(pinned.payload ->> 'attempt' AS bigint) AS attempt,
    pinned.payload ->> 'plan' AS plan,
    pinned.payload ->> 'revision' AS revision,
    CASE pinned.payload ->> 'revision'
        WHEN started.payload ->> 'source' THEN 'source'
        WHEN started.payload ->> 'target' THEN 'target'
        ELSE 'neither'
    END AS side,
    pinned.occurred_at AS decided_at
FROM public.events AS pinned
JOIN public.events AS started
    ON started.tenant_id = 'fleet'
    AND started.stream = 'rollout/' || (pinned.payload ->> 'rollout')
    AND started.stream_version = 1
WHERE pinned.type = 'turn.pinned' AND pinned.payload ->> 'rollout' IS NOT NULL;
