-- How many attempts run on each engine, over all tenants: all that a process which acts for one tenant may know of others.
-- An open turn runs where the last pin of its conversation says, if that pin is its own.
CREATE VIEW public.engine_load AS
SELECT pinned.engine, count(*) AS attempts
FROM public.turns CROSS JOIN LATERAL (
    SELECT payload ->> 'turn' AS turn_id, payload ->> 'engine' AS engine
    FROM public.events
    WHERE events.tenant_id = turns.tenant_id AND events.stream = turns.conversation_id
        AND events.type = 'turn.pinned'
    ORDER BY events.stream_version DESC LIMIT 1
) AS pinned
WHERE NOT turns.closed AND turns.turn_id = pinned.turn_id
GROUP BY pinned.engine;
