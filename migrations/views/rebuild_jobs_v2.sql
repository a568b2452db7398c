-- The rebuild queue as it is, failures and losers of a fence among it. Its rows may be deleted at any time; events stay.
-- `chunks` were published on the way to the whole, `rollout_id` is whom it warms for, where no turn waits for it.
CREATE OR REPLACE VIEW audit.rebuild_jobs AS
SELECT
    rebuild_id, tenant_id, conversation_id, turn_id, attempt, revision, queue, state, fence, owner,
    tokens_total, tokens_done, engine_boot AS engine, artifact_id, reason, created_at, started_at, finished_at,
    rollout_id, cardinality(partials) AS chunks
FROM public.rebuilds;
