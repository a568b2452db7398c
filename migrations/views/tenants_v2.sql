-- Each tenant with its policy and its limits, and who set them; null is no limit of its own. `erased_after_days` without a turn.
CREATE OR REPLACE VIEW audit.tenants AS
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
    limits.set_by,
    retention.after_days AS erased_after_days,
    retention.set_at AS retention_set_at,
    retention.set_by AS retention_set_by
FROM public.tenants
LEFT JOIN public.tenant_limits AS limits USING (tenant_id)
LEFT JOIN public.tenant_retention AS retention USING (tenant_id);
