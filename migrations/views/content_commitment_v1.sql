-- What an event says of its content without holding it: SHA-256 of a salt that is erased with the content, and of both parts.
CREATE FUNCTION audit.content_commitment(salt bytea, content bytea, tokens bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN sha256(
    salt
    || coalesce('\x01'::bytea || int8send(octet_length(content)) || content, '\x00'::bytea)
    || coalesce('\x01'::bytea || int8send(octet_length(tokens)) || tokens, '\x00'::bytea)
);
