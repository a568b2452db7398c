-- How many attempts run on each engine, over all tenants: all that a process which acts for one tenant may know of others.
-- An open turn runs where the last pin of its conversation says, if that pin is its own; and counts where its prompt may be prefilled too.
CREATE OR REPLACE VIEW public.engine_load AS
SELECT busy.engine, count(*) AS attempts
FROM public.turns CROSS JOIN LATERAL (
    SELECT payload ->> 'turn' AS turn_id, payload ->> 'engine' AS engine, payload ->> 'prefill' AS prefill
    FROM public.events
    WHERE events.tenant_id = turns.tenant_id AND events.stream = turns.conversation_id
        AND events.type = 'turn.pinned'
    ORDER BY events.stream_version DESC LIMIT 1
) AS pinned CROSS JOIN LATERAL (VALUES (pinned.engine), (pinned.prefill)) AS busy (engine)
WHERE NOT turns.closed AND turns.turn_id = pinned.turn_id AND busy.engine IS NOT NULL
GROUP BY busy.engine;
