-- The exact window that the model saw at a turn: what the turns that it extends added and answered, then its own addition.
CREATE FUNCTION audit.prompt_of(wanted text) RETURNS bigint[]
LANGUAGE sql STABLE STRICT
SET search_path = ''
RETURN (
    WITH RECURSIVE chain AS (
        SELECT turn_id, extends, prompt_added AS ids, 0 AS depth
        FROM audit.turn_tokens WHERE turn_id = wanted
        UNION ALL
        SELECT earlier.turn_id, earlier.extends, earlier.prompt_added || earlier.output, chain.depth + 1
        FROM chain JOIN audit.turn_tokens AS earlier ON earlier.turn_id = chain.extends
    )
    SELECT array_agg(id ORDER BY depth DESC, place)
    FROM chain, unnest(ids) WITH ORDINALITY AS window_ids (id, place)
);
