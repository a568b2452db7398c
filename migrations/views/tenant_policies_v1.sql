-- Each change of a tenant's `on_upgrade`: what it was and is, who changed it, and until when that held. Null: the tenant says nothing.
-- What a tenant was made with is the `previous` of its first row, or in audit.tenants where there is none.
CREATE VIEW audit.tenant_policies AS
SELECT
    position,
    payload ->> 'tenant' AS tenant_id,
    payload ->> 'previous' AS previous,
    payload ->> 'on_upgrade' AS on_upgrade,
    payload ->> 'by' AS set_by,
    occurred_at AS set_at,
    lead(occurred_at) OVER (PARTITION BY stream ORDER BY stream_version) AS held_until
FROM public.events
WHERE tenant_id = 'fleet' AND type = 'tenant.policy_set';
