-- Each tenant with its policy and its limits, and who set them; null is no limit of its own.
CREATE VIEW audit.tenants AS
SELECT
    tenants.tenant_id,
    tenants.on_upgrade,
    tenants.created_at,
    limits.request_bytes,
    limits.items,
    limits.conversations,
    limits.concurrent_turns,
    limits.tokens,
    limits.set_at,
    limits.set_by
FROM public.tenants LEFT JOIN public.tenant_limits AS limits USING (tenant_id);
