-- Which conversations began as a fork, of what, after which turn, and whether the parent's history is still what was forked.
-- `ancestors` are all histories that it begins with, the nearest first.
CREATE VIEW audit.forks AS
SELECT
    forked.position,
    forked.tenant_id,
    forked.stream AS conversation_id,
    forked.payload ->> 'parent' AS parent_id,
    forked.payload ->> 'turn' AS after_turn_id,
    CAST(forked.payload ->> 'parent_version' AS bigint) AS parent_version,
    (
        WITH RECURSIVE lineage AS (
            SELECT forked.payload ->> 'parent' AS ancestor, 1 AS generation
            UNION ALL
            SELECT earlier.payload ->> 'parent', lineage.generation + 1
            FROM lineage
            JOIN public.events AS earlier
                ON earlier.tenant_id = forked.tenant_id
                AND earlier.stream = lineage.ancestor
                AND earlier.stream_version = 2
                AND earlier.type = 'conversation.forked'
            WHERE lineage.generation < 100
        )
        SELECT array_agg(ancestor ORDER BY generation) FROM lineage
    ) AS ancestors,
    coalesce(parent.chain = decode(forked.payload ->> 'parent_chain', 'hex'), false) AS parent_intact,
    forked.occurred_at AS forked_at
FROM public.events AS forked
LEFT JOIN public.events AS parent
    ON parent.tenant_id = forked.tenant_id
    AND parent.stream = forked.payload ->> 'parent'
    AND parent.stream_version = CAST(forked.payload ->> 'parent_version' AS bigint)
WHERE forked.type = 'conversation.forked';
