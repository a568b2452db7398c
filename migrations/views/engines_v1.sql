-- Each registration of an engine: which boot, as which revision it measured itself, and where.
CREATE VIEW audit.engines AS
SELECT
    position,
    payload ->> 'boot' AS engine,
    payload ->> 'revision' AS revision,
    payload ->> 'role' AS role,
    payload ->> 'address' AS address,
    occurred_at AS registered_at
FROM public.events
WHERE tenant_id = 'fleet' AND type = 'engine.registered';
