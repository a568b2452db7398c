-- Which conversations were erased, by whom and why, and whether anything of what was said is still there (it must not be):
-- rows of content, and stored KV whose deletion is not done yet.
CREATE OR REPLACE VIEW audit.erasures AS
SELECT
    tombstone.position,
    tombstone.tenant_id,
    tombstone.stream AS conversation_id,
    tombstone.payload ->> 'by' AS erased_by,
    tombstone.payload ->> 'reason' AS reason,
    tombstone.occurred_at AS erased_at,
    (
        SELECT count(*) FROM public.event_contents AS kept
        WHERE kept.tenant_id = tombstone.tenant_id AND kept.stream = tombstone.stream
    ) AS contents_left,
    (
        SELECT count(*) FROM public.kv_deletions AS kv
        WHERE kv.tenant_id = tombstone.tenant_id AND kv.conversation_id = tombstone.stream AND kv.done_at IS NULL
    ) AS kv_left
FROM public.events AS tombstone
WHERE tombstone.type = 'conversation.erased';
