-- The rebuild queue as it is, failures and losers of a fence among it. Its rows may be deleted at any time; events stay.
CREATE VIEW audit.rebuild_jobs AS
SELECT
    rebuild_id, tenant_id, conversation_id, turn_id, attempt, revision, queue, state, fence, owner,
    tokens_total, tokens_done, engine_boot AS engine, artifact_id, reason, created_at, started_at, finished_at
FROM public.rebuilds;
