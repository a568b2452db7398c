-- Which stored KV had to be deleted for an erasure, and what became of it: still waiting, failed, deleted, or not in the store.
-- From rows that work is done by, not from events.
CREATE VIEW audit.kv_deletions AS
SELECT
    artifact_id,
    tenant_id,
    conversation_id,
    asked_at,
    CASE
        WHEN done_at IS NOT NULL AND found THEN 'deleted'
        WHEN done_at IS NOT NULL THEN 'not there'
        WHEN failure IS NOT NULL THEN 'failed'
        ELSE 'waiting'
    END AS state,
    tries,
    store,
    failure,
    done_at
FROM public.kv_deletions;
