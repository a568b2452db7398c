-- Each adapter that an engine served: under which name, as which effective revision, from when, and until it was unloaded.
-- One that went with its engine has no end here; audit.engines has the boots.
CREATE VIEW audit.engine_adapters AS
SELECT
    served.position,
    served.payload ->> 'boot' AS engine,
    served.payload ->> 'model' AS model,
    served.payload ->> 'adapter' AS adapter,
    served.payload ->> 'revision' AS revision,
    served.occurred_at AS served_at,
    withdrawn.occurred_at AS withdrawn_at
FROM public.events AS served
LEFT JOIN LATERAL (
    SELECT later.occurred_at
    FROM public.events AS later
    WHERE later.tenant_id = 'fleet' AND later.stream = served.stream
        AND later.stream_version > served.stream_version
        AND later.type = 'adapter.withdrawn'
        AND later.payload ->> 'model' = served.payload ->> 'model'
    ORDER BY later.stream_version LIMIT 1
) AS withdrawn ON true
WHERE served.tenant_id = 'fleet' AND served.type = 'adapter.served';
