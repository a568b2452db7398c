-- The SHA-256 of everything an event fixes: typed by place, and each text preceded by its length.
-- Neither position nor txid are in it: a restore into another cluster may have to give them anew.
CREATE FUNCTION audit.event_digest(
    tenant_id text,
    stream text,
    stream_version bigint,
    type text,
    schema_number bigint,
    occurred_at timestamptz,
    payload jsonb,
    commitment bytea
) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
RETURN sha256(
    '\x657665727475726e2e6576656e742e7631'::bytea -- 'everturn.event.v1'
    || int4send(octet_length(tenant_id)) || textsend(tenant_id)
    || int4send(octet_length(stream)) || textsend(stream)
    || int8send(stream_version)
    || int4send(octet_length(type)) || textsend(type)
    || int8send(schema_number)
    || timestamptz_send(occurred_at)
    || int4send(octet_length(CAST(payload AS text))) || textsend(CAST(payload AS text))
    || coalesce(commitment, '\x'::bytea)
);
