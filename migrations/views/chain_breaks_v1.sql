-- Events whose place or chain is not what those before them make it. Must stay empty.
-- The first row of a stream is where it breaks. A tail that was cut off, or a chain that was made anew from its beginning,
-- shows only against a checkpoint that was kept elsewhere: `everturn audit verify --checkpoint FILE`.
CREATE VIEW audit.chain_breaks AS
SELECT position, tenant_id, stream, stream_version, type, occurred_at
FROM (
    SELECT
        position, tenant_id, stream, stream_version, type, occurred_at, chain,
        row_number() OVER in_order AS place,
        audit.chained(
            '\x'::bytea,
            audit.event_digest(
                tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, commitment
            )
        ) OVER in_order AS expected
    FROM public.events
    WINDOW in_order AS (PARTITION BY tenant_id, stream ORDER BY stream_version)
) AS chained
WHERE stream_version <> place OR chain IS DISTINCT FROM expected;
