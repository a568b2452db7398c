-- Where each alias pointed, from when until when, and who moved it. `moved_until` is null where it points now.
CREATE VIEW audit.alias_history AS
SELECT
    position,
    payload ->> 'alias' AS alias,
    payload ->> 'previous' AS previous_revision,
    payload ->> 'revision' AS revision,
    payload ->> 'by' AS moved_by,
    occurred_at AS moved_at,
    lead(occurred_at) OVER (PARTITION BY stream ORDER BY stream_version) AS moved_until
FROM public.events
WHERE tenant_id = 'fleet' AND type = 'alias.moved';
