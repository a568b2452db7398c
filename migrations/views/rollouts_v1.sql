-- Each step of each rollout: who moved it, when, why, to which state and share. One row for each event; the first has both revisions.
CREATE VIEW audit.rollouts AS
SELECT
    moved.position,
    moved.payload ->> 'rollout' AS rollout_id,
    started.payload ->> 'alias' AS alias,
    started.payload ->> 'source' AS source,
    started.payload ->> 'target' AS target,
    started.payload ->> 'back_of' AS back_of,
    replace(moved.type, 'rollout.', '') AS moved,
    moved.payload ->> 'state' AS state,
    CAST(moved.payload ->> 'step' AS bigint) AS step,
    CAST(moved.payload ->> 'percent' AS bigint) AS percent,
    moved.payload ->> 'by' AS moved_by,
    moved.payload ->> 'reason' AS reason,
    moved.occurred_at AS moved_at
FROM public.events AS moved
JOIN public.events AS started
    ON started.tenant_id = moved.tenant_id
    AND started.stream = moved.stream
    AND started.stream_version = 1
WHERE moved.tenant_id = 'fleet' AND moved.type IN (
    'rollout.started', 'rollout.stepped', 'rollout.paused', 'rollout.resumed',
    'rollout.aborted', 'rollout.rolled_back', 'rollout.done'
);
