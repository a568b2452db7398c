-- What each tenant keeps here, in rows and bytes: the record, what was said, the token ids, and KV in the store.
CREATE VIEW audit.tenant_storage AS
SELECT
    tenants.tenant_id,
    coalesce(log.conversations, 0) AS conversations,
    coalesce(log.events, 0) AS events,
    coalesce(log.bytes, 0) AS event_bytes,
    coalesce(said.text_bytes, 0) AS text_bytes,
    coalesce(said.tokens, 0) AS tokens,
    coalesce(kv.artifacts, 0) AS artifacts,
    coalesce(kv.bytes, 0) AS kv_bytes
FROM public.tenants
LEFT JOIN (
    SELECT
        tenant_id,
        count(*) FILTER (WHERE type = 'conversation.created') AS conversations,
        count(*) AS events,
        sum(pg_column_size(payload)) AS bytes
    FROM public.events GROUP BY tenant_id
) AS log USING (tenant_id)
LEFT JOIN (
    SELECT tenant_id, sum(octet_length(content)) AS text_bytes, sum(octet_length(tokens)) / 4 AS tokens
    FROM public.event_contents GROUP BY tenant_id
) AS said USING (tenant_id)
LEFT JOIN (
    SELECT tenant_id, count(*) AS artifacts, sum(bytes) AS bytes FROM public.artifacts GROUP BY tenant_id
) AS kv USING (tenant_id);
