-- Packed token ids as an array, in order.
CREATE FUNCTION audit.token_ids(packed bytea) RETURNS bigint[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = ''
RETURN ARRAY(
    SELECT get_byte(packed, at) + 256 * get_byte(packed, at + 1) + 65536 * get_byte(packed, at + 2)
        + 16777216 * CAST(get_byte(packed, at + 3) AS bigint)
    FROM generate_series(0, octet_length(packed) - 4, 4) AS at
    ORDER BY at
);
