-- One step of a stream's chain; `previous` counts for the first step only.
CREATE FUNCTION audit.chain_link(state bytea, previous bytea, digest bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN sha256(coalesce(state, previous) || digest);
