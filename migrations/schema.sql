--
-- PostgreSQL database dump
--



SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: audit; Type: SCHEMA; Schema: -; Owner: everturn_owner
--

CREATE SCHEMA audit;


ALTER SCHEMA audit OWNER TO everturn_owner;

--
-- Name: chain_link(bytea, bytea, bytea); Type: FUNCTION; Schema: audit; Owner: everturn_owner
--

CREATE FUNCTION audit.chain_link(state bytea, previous bytea, digest bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN sha256((COALESCE(state, previous) || digest));


ALTER FUNCTION audit.chain_link(state bytea, previous bytea, digest bytea) OWNER TO everturn_owner;

--
-- Name: content_commitment(bytea, bytea, bytea); Type: FUNCTION; Schema: audit; Owner: everturn_owner
--

CREATE FUNCTION audit.content_commitment(salt bytea, content bytea, tokens bytea) RETURNS bytea
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN sha256(((salt || COALESCE((('\x01'::bytea || int8send((octet_length(content))::bigint)) || content), '\x00'::bytea)) || COALESCE((('\x01'::bytea || int8send((octet_length(tokens))::bigint)) || tokens), '\x00'::bytea)));


ALTER FUNCTION audit.content_commitment(salt bytea, content bytea, tokens bytea) OWNER TO everturn_owner;

--
-- Name: event_digest(text, text, bigint, text, bigint, timestamp with time zone, jsonb, bytea); Type: FUNCTION; Schema: audit; Owner: everturn_owner
--

CREATE FUNCTION audit.event_digest(tenant_id text, stream text, stream_version bigint, type text, schema_number bigint, occurred_at timestamp with time zone, payload jsonb, commitment bytea) RETURNS bytea
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN sha256((((((((((((('\x657665727475726e2e6576656e742e7631'::bytea || int4send(octet_length(tenant_id))) || textsend(tenant_id)) || int4send(octet_length(stream))) || textsend(stream)) || int8send(stream_version)) || int4send(octet_length(type))) || textsend(type)) || int8send(schema_number)) || timestamptz_send(occurred_at)) || int4send(octet_length((payload)::text))) || textsend((payload)::text)) || COALESCE(commitment, '\x'::bytea)));


ALTER FUNCTION audit.event_digest(tenant_id text, stream text, stream_version bigint, type text, schema_number bigint, occurred_at timestamp with time zone, payload jsonb, commitment bytea) OWNER TO everturn_owner;

--
-- Name: token_ids(bytea); Type: FUNCTION; Schema: audit; Owner: everturn_owner
--

CREATE FUNCTION audit.token_ids(packed bytea) RETURNS bigint[]
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path TO ''
    RETURN ARRAY(SELECT (((get_byte(token_ids.packed, at.at) + (256 * get_byte(token_ids.packed, (at.at + 1)))) + (65536 * get_byte(token_ids.packed, (at.at + 2)))) + (16777216 * (get_byte(token_ids.packed, (at.at + 3)))::bigint)) FROM generate_series(0, (octet_length(token_ids.packed) - 4), 4) at(at) ORDER BY at.at);


ALTER FUNCTION audit.token_ids(packed bytea) OWNER TO everturn_owner;

SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: event_contents; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.event_contents (
    tenant_id text NOT NULL,
    stream text NOT NULL,
    stream_version bigint NOT NULL,
    salt bytea NOT NULL,
    content bytea,
    tokens bytea,
    CONSTRAINT ck_event_contents_parts CHECK (((content IS NOT NULL) OR (tokens IS NOT NULL))),
    CONSTRAINT ck_event_contents_salt CHECK ((octet_length(salt) = 16)),
    CONSTRAINT ck_event_contents_tokens CHECK (((octet_length(tokens) % 4) = 0))
);

ALTER TABLE ONLY public.event_contents FORCE ROW LEVEL SECURITY;


ALTER TABLE public.event_contents OWNER TO everturn_owner;

--
-- Name: events; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.events (
    "position" bigint NOT NULL,
    tenant_id text NOT NULL,
    stream text NOT NULL,
    stream_version bigint NOT NULL,
    type text NOT NULL,
    schema_number bigint NOT NULL,
    occurred_at timestamp with time zone NOT NULL,
    txid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    payload jsonb NOT NULL,
    commitment bytea,
    chain bytea NOT NULL,
    CONSTRAINT ck_events_chain CHECK ((octet_length(chain) = 32)),
    CONSTRAINT ck_events_commitment CHECK ((octet_length(commitment) = 32)),
    CONSTRAINT ck_events_committed CHECK (((type <> ALL (ARRAY['message.accepted'::text, 'function_call.accepted'::text, 'function_call_output.accepted'::text, 'reasoning.accepted'::text, 'turn.asked'::text, 'turn.streamed'::text, 'turn.scored'::text, 'turn.parsed'::text, 'turn.completed'::text, 'attempt.failed'::text])) OR (commitment IS NOT NULL))),
    CONSTRAINT ck_events_payload CHECK ((jsonb_typeof(payload) = 'object'::text)),
    CONSTRAINT ck_events_schema_number CHECK ((schema_number > 0)),
    CONSTRAINT ck_events_stream CHECK (((tenant_id <> ''::text) AND (stream <> ''::text))),
    CONSTRAINT ck_events_stream_version CHECK ((stream_version > 0)),
    CONSTRAINT ck_events_type CHECK ((type ~ '^[a-z_]+[.][a-z_]+$'::text))
);

ALTER TABLE ONLY public.events FORCE ROW LEVEL SECURITY;


ALTER TABLE public.events OWNER TO everturn_owner;

--
-- Name: turn_tokens; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.turn_tokens AS
 SELECT completed."position",
    completed.tenant_id,
    completed.stream AS conversation_id,
    (completed.payload ->> 'turn'::text) AS turn_id,
    (completed.payload ->> 'extends'::text) AS extends,
    audit.token_ids(substr(kept.tokens, 1, (4 * ((completed.payload ->> 'prompt_delta'::text))::integer))) AS prompt_added,
    audit.token_ids(substr(kept.tokens, ((4 * ((completed.payload ->> 'prompt_delta'::text))::integer) + 1))) AS output
   FROM (public.events completed
     LEFT JOIN public.event_contents kept USING (tenant_id, stream, stream_version))
  WHERE (completed.type = 'turn.completed'::text);


ALTER VIEW audit.turn_tokens OWNER TO everturn_owner;

--
-- Name: prompt_of(text); Type: FUNCTION; Schema: audit; Owner: everturn_owner
--

CREATE FUNCTION audit.prompt_of(wanted text) RETURNS bigint[]
    LANGUAGE sql STABLE STRICT
    SET search_path TO ''
    RETURN (WITH RECURSIVE chain AS (SELECT turn_tokens.turn_id, turn_tokens.extends, turn_tokens.prompt_added AS ids, 0 AS depth FROM audit.turn_tokens WHERE (turn_tokens.turn_id = prompt_of.wanted) UNION ALL SELECT earlier.turn_id, earlier.extends, (earlier.prompt_added || earlier.output), (chain_1.depth + 1) FROM (chain chain_1 JOIN audit.turn_tokens earlier ON ((earlier.turn_id = chain_1.extends)))) SELECT array_agg(window_ids.id ORDER BY chain.depth DESC, window_ids.place) AS array_agg FROM chain, LATERAL unnest(chain.ids) WITH ORDINALITY window_ids(id, place));


ALTER FUNCTION audit.prompt_of(wanted text) OWNER TO everturn_owner;

--
-- Name: refuse_change(); Type: FUNCTION; Schema: public; Owner: everturn_owner
--

CREATE FUNCTION public.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO ''
    AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation';
END
$$;


ALTER FUNCTION public.refuse_change() OWNER TO everturn_owner;

--
-- Name: refuse_erasure_without_tombstone(); Type: FUNCTION; Schema: public; Owner: everturn_owner
--

CREATE FUNCTION public.refuse_erasure_without_tombstone() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO ''
    AS $$
DECLARE
    kept record;
BEGIN
    SELECT gone.tenant_id, gone.stream INTO kept FROM gone
    WHERE NOT EXISTS (
        SELECT FROM public.events AS tombstone
        WHERE tombstone.type = 'conversation.erased'
            AND tombstone.tenant_id = gone.tenant_id AND tombstone.stream = gone.stream
    )
    LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the content of % may go only once its stream holds a conversation.erased', kept.stream
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$;


ALTER FUNCTION public.refuse_erasure_without_tombstone() OWNER TO everturn_owner;

--
-- Name: chained(bytea, bytea); Type: AGGREGATE; Schema: audit; Owner: everturn_owner
--

CREATE AGGREGATE audit.chained(previous bytea, digest bytea) (
    SFUNC = audit.chain_link,
    STYPE = bytea
);


ALTER AGGREGATE audit.chained(previous bytea, digest bytea) OWNER TO everturn_owner;

--
-- Name: alias_history; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.alias_history AS
 SELECT "position",
    (payload ->> 'alias'::text) AS alias,
    (payload ->> 'previous'::text) AS previous_revision,
    (payload ->> 'revision'::text) AS revision,
    (payload ->> 'by'::text) AS moved_by,
    occurred_at AS moved_at,
    lead(occurred_at) OVER (PARTITION BY stream ORDER BY stream_version) AS moved_until
   FROM public.events
  WHERE ((tenant_id = 'fleet'::text) AND (type = 'alias.moved'::text));


ALTER VIEW audit.alias_history OWNER TO everturn_owner;

--
-- Name: rebuilds; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.rebuilds (
    rebuild_id text NOT NULL,
    tenant_id text NOT NULL,
    conversation_id text NOT NULL,
    turn_id text NOT NULL,
    attempt bigint NOT NULL,
    revision text NOT NULL,
    offer text,
    queue text NOT NULL,
    state text DEFAULT 'queued'::text NOT NULL,
    fence bigint DEFAULT 0 NOT NULL,
    owner text,
    lease_expires_at timestamp with time zone,
    tokens_total bigint NOT NULL,
    tokens_done bigint DEFAULT 0 NOT NULL,
    engine_boot text,
    artifact_id text,
    reason text,
    refusal jsonb,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    rollout_id text,
    partials text[] DEFAULT '{}'::text[] NOT NULL,
    claims bigint DEFAULT 0 NOT NULL,
    CONSTRAINT ck_rebuilds_claims CHECK ((claims >= 0)),
    CONSTRAINT ck_rebuilds_done CHECK (((state <> 'done'::text) OR ((artifact_id IS NOT NULL) AND (engine_boot IS NOT NULL)))),
    CONSTRAINT ck_rebuilds_failed CHECK (((state <> 'failed'::text) OR (reason IS NOT NULL))),
    CONSTRAINT ck_rebuilds_fence CHECK (((attempt > 0) AND (fence >= 0))),
    CONSTRAINT ck_rebuilds_finished CHECK (((state = ANY (ARRAY['queued'::text, 'running'::text])) = (finished_at IS NULL))),
    CONSTRAINT ck_rebuilds_queue CHECK ((queue = ANY (ARRAY['interactive'::text, 'background'::text]))),
    CONSTRAINT ck_rebuilds_revision CHECK ((revision ~ '^rev_[0-9a-f]{64}$'::text)),
    CONSTRAINT ck_rebuilds_running CHECK (((state <> 'running'::text) OR ((fence > 0) AND (owner IS NOT NULL) AND (lease_expires_at IS NOT NULL)))),
    CONSTRAINT ck_rebuilds_state CHECK ((state = ANY (ARRAY['queued'::text, 'running'::text, 'done'::text, 'failed'::text, 'superseded'::text]))),
    CONSTRAINT ck_rebuilds_tokens CHECK (((tokens_total >= 0) AND (tokens_done >= 0)))
);

ALTER TABLE ONLY public.rebuilds FORCE ROW LEVEL SECURITY;


ALTER TABLE public.rebuilds OWNER TO everturn_owner;

--
-- Name: artifacts; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.artifacts AS
 SELECT events."position",
    events.tenant_id,
    events.stream AS conversation_id,
    (events.payload ->> 'published'::text) AS artifact_id,
    (events.payload ->> 'turn'::text) AS turn_id,
    'turn'::text AS made_by,
    (events.payload ->> 'engine'::text) AS producer,
    (events.payload ->> 'engine_revision'::text) AS revision,
    events.occurred_at AS made_at
   FROM public.events
  WHERE ((events.type = 'turn.completed'::text) AND ((events.payload ->> 'published'::text) IS NOT NULL))
UNION ALL
 SELECT events."position",
    events.tenant_id,
    events.stream AS conversation_id,
    (events.payload ->> 'artifact'::text) AS artifact_id,
    (events.payload ->> 'turn'::text) AS turn_id,
    'rebuild'::text AS made_by,
    (events.payload ->> 'producer'::text) AS producer,
    (events.payload ->> 'revision'::text) AS revision,
    events.occurred_at AS made_at
   FROM public.events
  WHERE ((events.type = 'kv.rebuilt'::text) AND (NOT (EXISTS ( SELECT
           FROM public.rebuilds job
          WHERE ((job.rebuild_id = (events.payload ->> 'rebuild'::text)) AND (job.tenant_id = events.tenant_id) AND (job.turn_id <> (events.payload ->> 'turn'::text)))))));


ALTER VIEW audit.artifacts OWNER TO everturn_owner;

--
-- Name: attempts; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.attempts AS
 SELECT pinned."position",
    pinned.tenant_id,
    pinned.stream AS conversation_id,
    (pinned.payload ->> 'turn'::text) AS turn_id,
    ((pinned.payload ->> 'attempt'::text))::bigint AS attempt,
    (pinned.payload ->> 'revision'::text) AS revision,
    (pinned.payload ->> 'engine'::text) AS engine,
        CASE
            WHEN (completed."position" IS NOT NULL) THEN 'completed'::text
            WHEN (failed."position" IS NOT NULL) THEN 'failed'::text
            ELSE 'running'::text
        END AS outcome,
    (failed.payload ->> 'reason'::text) AS failure,
    pinned.occurred_at AS pinned_at,
    COALESCE(completed.occurred_at, failed.occurred_at) AS ended_at
   FROM ((public.events pinned
     LEFT JOIN public.events completed ON (((completed.type = 'turn.completed'::text) AND (completed.tenant_id = pinned.tenant_id) AND ((completed.payload ->> 'turn'::text) = (pinned.payload ->> 'turn'::text)) AND ((completed.payload ->> 'attempt'::text) = (pinned.payload ->> 'attempt'::text)))))
     LEFT JOIN public.events failed ON (((failed.type = 'attempt.failed'::text) AND (failed.tenant_id = pinned.tenant_id) AND ((failed.payload ->> 'turn'::text) = (pinned.payload ->> 'turn'::text)) AND ((failed.payload ->> 'attempt'::text) = (pinned.payload ->> 'attempt'::text)))))
  WHERE (pinned.type = 'turn.pinned'::text);


ALTER VIEW audit.attempts OWNER TO everturn_owner;

--
-- Name: chain_breaks; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.chain_breaks AS
 SELECT "position",
    tenant_id,
    stream,
    stream_version,
    type,
    occurred_at
   FROM ( SELECT events."position",
            events.tenant_id,
            events.stream,
            events.stream_version,
            events.type,
            events.occurred_at,
            events.chain,
            row_number() OVER in_order AS place,
            audit.chained('\x'::bytea, audit.event_digest(events.tenant_id, events.stream, events.stream_version, events.type, events.schema_number, events.occurred_at, events.payload, events.commitment)) OVER in_order AS expected
           FROM public.events
          WINDOW in_order AS (PARTITION BY events.tenant_id, events.stream ORDER BY events.stream_version)) chained
  WHERE ((stream_version <> place) OR (chain IS DISTINCT FROM expected));


ALTER VIEW audit.chain_breaks OWNER TO everturn_owner;

--
-- Name: contracts_used; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.contracts_used AS
 SELECT completed."position",
    completed.tenant_id,
    completed.stream AS conversation_id,
    (completed.payload ->> 'turn'::text) AS turn_id,
    ((completed.payload ->> 'attempt'::text))::bigint AS attempt,
    completed.occurred_at AS completed_at,
    (completed.payload #>> '{loaded,contract}'::text[]) AS contract_id,
    (completed.payload #>> '{loaded,artifact}'::text[]) AS artifact_id,
    (completed.payload #>> '{loaded,revision}'::text[]) AS artifact_revision,
    (completed.payload #>> '{loaded,producer}'::text[]) AS prefill_engine,
    (completed.payload ->> 'engine'::text) AS decode_engine,
    (completed.payload ->> 'engine_revision'::text) AS decode_revision,
    ((completed.payload #>> '{loaded,tokens}'::text[]))::bigint AS tokens_loaded,
    ARRAY( SELECT jsonb_array_elements_text((approved.payload #> '{terms,waived}'::text[])) AS jsonb_array_elements_text) AS waived,
    (approved.payload #>> '{terms,reason}'::text[]) AS reason,
    (approved.payload #>> '{terms,approved_by}'::text[]) AS approved_by,
    approved.occurred_at AS approved_at,
    to_timestamp((((((approved.payload #>> '{terms,ends_ms}'::text[]))::bigint)::numeric / 1000.0))::double precision) AS ends_at,
    revoked.occurred_at AS revoked_at,
        CASE
            WHEN (approved."position" IS NULL) THEN 'it was never approved'::text
            WHEN ((approved.payload #>> '{terms,producer}'::text[]) <> (completed.payload #>> '{loaded,revision}'::text[])) THEN ('it is about KV of '::text || (approved.payload #>> '{terms,producer}'::text[]))
            WHEN ((approved.payload #>> '{terms,reader}'::text[]) <> (completed.payload ->> 'engine_revision'::text)) THEN (('it lets '::text || (approved.payload #>> '{terms,reader}'::text[])) || ' read'::text)
            WHEN (pinned."position" IS NULL) THEN 'the attempt was never pinned'::text
            WHEN (pinned.occurred_at >= to_timestamp((((((approved.payload #>> '{terms,ends_ms}'::text[]))::bigint)::numeric / 1000.0))::double precision)) THEN 'it had ended before the attempt was pinned'::text
            WHEN (pinned.occurred_at >= revoked.occurred_at) THEN 'it was revoked before the attempt was pinned'::text
            ELSE NULL::text
        END AS breach
   FROM (((public.events completed
     LEFT JOIN public.events pinned ON (((pinned.type = 'turn.pinned'::text) AND (pinned.tenant_id = completed.tenant_id) AND ((pinned.payload ->> 'turn'::text) = (completed.payload ->> 'turn'::text)) AND ((pinned.payload ->> 'attempt'::text) = (completed.payload ->> 'attempt'::text)))))
     LEFT JOIN public.events approved ON (((approved.type = 'contract.approved'::text) AND (approved.tenant_id = 'fleet'::text) AND (approved.stream = ('contract/'::text || (completed.payload #>> '{loaded,contract}'::text[]))) AND (approved.stream_version = 1))))
     LEFT JOIN public.events revoked ON (((revoked.type = 'contract.revoked'::text) AND (revoked.tenant_id = 'fleet'::text) AND (revoked.stream = ('contract/'::text || (completed.payload #>> '{loaded,contract}'::text[]))) AND (revoked.stream_version = 2))))
  WHERE ((completed.type = 'turn.completed'::text) AND ((completed.payload #>> '{loaded,contract}'::text[]) IS NOT NULL));


ALTER VIEW audit.contracts_used OWNER TO everturn_owner;

--
-- Name: turn_provenance; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.turn_provenance AS
 WITH facts AS (
         SELECT completed."position",
            completed.tenant_id,
            completed.stream AS conversation_id,
            (completed.payload ->> 'turn'::text) AS turn_id,
            (completed.payload ->> 'attempt'::text) AS attempt,
            completed.occurred_at AS completed_at,
            (completed.payload ->> 'requested_revision'::text) AS requested_revision,
            COALESCE((completed.payload #>> '{loaded,producer}'::text[]), (completed.payload ->> 'engine'::text)) AS prefill_engine,
            COALESCE(prefill_adapter.revision, (prefill.payload ->> 'revision'::text)) AS prefill_revision,
            (completed.payload #>> '{loaded,artifact}'::text[]) AS artifact_id,
            (completed.payload #>> '{loaded,revision}'::text[]) AS artifact_revision,
            (completed.payload ->> 'engine'::text) AS decode_engine,
            (completed.payload ->> 'engine_revision'::text) AS decode_revision,
            COALESCE(decode_adapter.revision, (decode.payload ->> 'revision'::text)) AS decode_registered_revision,
            (completed.payload ->> 'kv_source'::text) AS kv_source,
            (completed.payload ->> 'kv_reason'::text) AS kv_reason,
            (completed.payload ->> 'prompt_tokens'::text) AS prompt_tokens,
            (completed.payload ->> 'local_tokens'::text) AS tokens_local,
            (completed.payload #>> '{loaded,tokens}'::text[]) AS tokens_loaded,
            (completed.payload ->> 'output'::text) AS output_tokens,
            decode_adapter.adapter
           FROM ((((public.events completed
             LEFT JOIN public.events prefill ON (((prefill.type = 'engine.registered'::text) AND (prefill.tenant_id = 'fleet'::text) AND (prefill.stream = ('engine/'::text || COALESCE((completed.payload #>> '{loaded,producer}'::text[]), (completed.payload ->> 'engine'::text)))) AND (prefill.stream_version = 1))))
             LEFT JOIN public.events decode ON (((decode.type = 'engine.registered'::text) AND (decode.tenant_id = 'fleet'::text) AND (decode.stream = ('engine/'::text || (completed.payload ->> 'engine'::text))) AND (decode.stream_version = 1))))
             LEFT JOIN ( SELECT events.stream,
                    (events.payload ->> 'revision'::text) AS revision,
                    min(events."position") AS since
                   FROM public.events
                  WHERE ((events.tenant_id = 'fleet'::text) AND (events.type = 'adapter.served'::text))
                  GROUP BY events.stream, (events.payload ->> 'revision'::text)) prefill_adapter ON (((prefill_adapter.stream = ('adapters/'::text || COALESCE((completed.payload #>> '{loaded,producer}'::text[]), (completed.payload ->> 'engine'::text)))) AND (prefill_adapter.revision = COALESCE((completed.payload #>> '{loaded,revision}'::text[]), (completed.payload ->> 'engine_revision'::text))) AND (prefill_adapter.since < completed."position"))))
             LEFT JOIN ( SELECT events.stream,
                    (events.payload ->> 'revision'::text) AS revision,
                    min((events.payload ->> 'adapter'::text)) AS adapter,
                    min(events."position") AS since
                   FROM public.events
                  WHERE ((events.tenant_id = 'fleet'::text) AND (events.type = 'adapter.served'::text))
                  GROUP BY events.stream, (events.payload ->> 'revision'::text)) decode_adapter ON (((decode_adapter.stream = ('adapters/'::text || (completed.payload ->> 'engine'::text))) AND (decode_adapter.revision = (completed.payload ->> 'engine_revision'::text)) AND (decode_adapter.since < completed."position"))))
          WHERE (completed.type = 'turn.completed'::text)
        )
 SELECT "position",
    tenant_id,
    conversation_id,
    turn_id,
    (attempt)::bigint AS attempt,
    completed_at,
    ( SELECT (started.payload ->> 'alias'::text)
           FROM public.events started
          WHERE ((started.type = 'turn.started'::text) AND (started.tenant_id = facts.tenant_id) AND ((started.payload ->> 'turn'::text) = facts.turn_id))) AS alias,
    ( SELECT (started.payload ->> 'on_upgrade'::text)
           FROM public.events started
          WHERE ((started.type = 'turn.started'::text) AND (started.tenant_id = facts.tenant_id) AND ((started.payload ->> 'turn'::text) = facts.turn_id))) AS on_upgrade,
    ( SELECT (started.payload ->> 'policy_level'::text)
           FROM public.events started
          WHERE ((started.type = 'turn.started'::text) AND (started.tenant_id = facts.tenant_id) AND ((started.payload ->> 'turn'::text) = facts.turn_id))) AS policy_level,
    ( SELECT (pinned.payload ->> 'plan'::text)
           FROM public.events pinned
          WHERE ((pinned.type = 'turn.pinned'::text) AND (pinned.tenant_id = facts.tenant_id) AND ((pinned.payload ->> 'turn'::text) = facts.turn_id) AND ((pinned.payload ->> 'attempt'::text) = facts.attempt))) AS plan,
    ( SELECT (pinned.payload ->> 'reason'::text)
           FROM public.events pinned
          WHERE ((pinned.type = 'turn.pinned'::text) AND (pinned.tenant_id = facts.tenant_id) AND ((pinned.payload ->> 'turn'::text) = facts.turn_id) AND ((pinned.payload ->> 'attempt'::text) = facts.attempt))) AS plan_reason,
    requested_revision,
    ( SELECT (pinned.payload ->> 'revision'::text)
           FROM public.events pinned
          WHERE ((pinned.type = 'turn.pinned'::text) AND (pinned.tenant_id = facts.tenant_id) AND ((pinned.payload ->> 'turn'::text) = facts.turn_id) AND ((pinned.payload ->> 'attempt'::text) = facts.attempt))) AS pinned_revision,
    prefill_engine,
    prefill_revision,
    artifact_id,
    artifact_revision,
    decode_engine,
    decode_revision,
    decode_registered_revision,
    kv_source,
    kv_reason,
    (prompt_tokens)::bigint AS prompt_tokens,
    (tokens_local)::bigint AS tokens_local,
    COALESCE((tokens_loaded)::bigint, (0)::bigint) AS tokens_loaded,
    (output_tokens)::bigint AS output_tokens,
    ( SELECT
                CASE
                    WHEN ((pinned.payload ->> 'revision'::text) IS NULL) THEN 'the attempt was never pinned'::text
                    WHEN ((pinned.payload ->> 'revision'::text) <> facts.requested_revision) THEN ((('pinned revision '::text || (pinned.payload ->> 'revision'::text)) || ' is not requested revision '::text) || facts.requested_revision)
                    WHEN (facts.prefill_revision IS NULL) THEN (('prefill engine '::text || facts.prefill_engine) || ' never registered'::text)
                    WHEN (facts.prefill_revision <> facts.artifact_revision) THEN ((((('prefill engine '::text || facts.prefill_engine) || ' registered as '::text) || facts.prefill_revision) || ', which is not artifact revision '::text) || facts.artifact_revision)
                    WHEN (COALESCE((facts.artifact_revision <> facts.decode_revision), false) AND (NOT (EXISTS ( SELECT
                       FROM audit.contracts_used used
                      WHERE ((used.tenant_id = facts.tenant_id) AND (used.turn_id = facts.turn_id) AND (used.attempt = (facts.attempt)::bigint) AND (used.breach IS NULL)))))) THEN COALESCE(( SELECT ((('contract '::text || used.contract_id) || ': '::text) || used.breach)
                       FROM audit.contracts_used used
                      WHERE ((used.tenant_id = facts.tenant_id) AND (used.turn_id = facts.turn_id) AND (used.attempt = (facts.attempt)::bigint))), ((('artifact revision '::text || facts.artifact_revision) || ' is not decode revision '::text) || facts.decode_revision))
                    WHEN (facts.decode_registered_revision IS NULL) THEN (('decode engine '::text || facts.decode_engine) || ' never registered'::text)
                    WHEN (facts.decode_registered_revision <> facts.decode_revision) THEN ((((('decode engine '::text || facts.decode_engine) || ' registered as '::text) || facts.decode_registered_revision) || ', which is not decode revision '::text) || facts.decode_revision)
                    WHEN (facts.decode_revision <> facts.requested_revision) THEN ((('decode revision '::text || facts.decode_revision) || ' is not requested revision '::text) || facts.requested_revision)
                    ELSE NULL::text
                END AS "case"
           FROM (( VALUES (true)) one(is_there)
             LEFT JOIN public.events pinned ON (((pinned.type = 'turn.pinned'::text) AND (pinned.tenant_id = facts.tenant_id) AND ((pinned.payload ->> 'turn'::text) = facts.turn_id) AND ((pinned.payload ->> 'attempt'::text) = facts.attempt))))) AS first_divergence,
        CASE
            WHEN (artifact_id IS NULL) THEN false
            WHEN ((artifact_revision <> decode_revision) AND (EXISTS ( SELECT
               FROM audit.contracts_used used
              WHERE ((used.tenant_id = facts.tenant_id) AND (used.turn_id = facts.turn_id) AND (used.attempt = (facts.attempt)::bigint) AND (used.breach IS NULL))))) THEN COALESCE((prefill_revision <> artifact_revision), false)
            ELSE ((artifact_revision <> decode_revision) OR COALESCE((prefill_revision <> decode_revision), false))
        END AS cross_revision,
        CASE
            WHEN (artifact_revision <> decode_revision) THEN ( SELECT used.contract_id
               FROM audit.contracts_used used
              WHERE ((used.tenant_id = facts.tenant_id) AND (used.turn_id = facts.turn_id) AND (used.attempt = (facts.attempt)::bigint)))
            ELSE NULL::text
        END AS contract_id,
    adapter
   FROM facts;


ALTER VIEW audit.turn_provenance OWNER TO everturn_owner;

--
-- Name: cross_revision_hits; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.cross_revision_hits AS
 SELECT tenant_id,
    conversation_id,
    turn_id,
    attempt,
    completed_at,
    prefill_engine,
    prefill_revision,
    artifact_id,
    artifact_revision,
    decode_engine,
    decode_revision,
    tokens_loaded,
    first_divergence,
    "position"
   FROM audit.turn_provenance
  WHERE ((artifact_id IS NOT NULL) AND cross_revision);


ALTER VIEW audit.cross_revision_hits OWNER TO everturn_owner;

--
-- Name: decisions; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.decisions AS
 SELECT pinned."position",
    pinned.tenant_id,
    pinned.stream AS conversation_id,
    (pinned.payload ->> 'turn'::text) AS turn_id,
    ((pinned.payload ->> 'attempt'::text))::bigint AS attempt,
    pinned.occurred_at AS decided_at,
    (pinned.payload ->> 'plan'::text) AS plan,
    (pinned.payload ->> 'reason'::text) AS reason,
    (pinned.payload ->> 'revision'::text) AS revision,
    (pinned.payload ->> 'engine'::text) AS engine,
    (pinned.payload ->> 'offer'::text) AS offered_artifact,
    ((pinned.payload ->> 'carry_tokens'::text))::boolean AS carried_tokens,
    (started.payload ->> 'on_upgrade'::text) AS policy,
        CASE (started.payload ->> 'policy_level'::text)
            WHEN 'turn'::text THEN 'the request of this turn'::text
            WHEN 'conversation'::text THEN ('conversation '::text || pinned.stream)
            WHEN 'alias'::text THEN ('alias '::text || (started.payload ->> 'alias'::text))
            WHEN 'tenant'::text THEN ('tenant '::text || pinned.tenant_id)
            ELSE 'nobody: the default'::text
        END AS policy_set_by,
    (started.payload ->> 'alias'::text) AS alias,
    (moved.payload ->> 'revision'::text) AS alias_revision,
    (moved.payload ->> 'by'::text) AS alias_moved_by,
    moved.occurred_at AS alias_moved_at,
    (pinned.payload ->> 'rollout'::text) AS rollout_id,
    ((pinned.payload ->> 'rollout_step'::text))::bigint AS rollout_step,
    (pinned.payload ->> 'rebuild'::text) AS rebuild_id,
    (pinned.payload ->> 'prefill'::text) AS prefill_engine
   FROM ((public.events pinned
     LEFT JOIN public.events started ON (((started.type = 'turn.started'::text) AND (started.tenant_id = pinned.tenant_id) AND ((started.payload ->> 'turn'::text) = (pinned.payload ->> 'turn'::text)))))
     LEFT JOIN LATERAL ( SELECT move.payload,
            move.occurred_at
           FROM public.events move
          WHERE ((move.tenant_id = 'fleet'::text) AND (move.stream = ('alias/'::text || (started.payload ->> 'alias'::text))) AND (move.type = 'alias.moved'::text) AND (move.occurred_at <= pinned.occurred_at))
          ORDER BY move.stream_version DESC
         LIMIT 1) moved ON (true))
  WHERE (pinned.type = 'turn.pinned'::text);


ALTER VIEW audit.decisions OWNER TO everturn_owner;

--
-- Name: engine_adapters; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.engine_adapters AS
 SELECT served."position",
    (served.payload ->> 'boot'::text) AS engine,
    (served.payload ->> 'model'::text) AS model,
    (served.payload ->> 'adapter'::text) AS adapter,
    (served.payload ->> 'revision'::text) AS revision,
    served.occurred_at AS served_at,
    withdrawn.occurred_at AS withdrawn_at
   FROM (public.events served
     LEFT JOIN LATERAL ( SELECT later.occurred_at
           FROM public.events later
          WHERE ((later.tenant_id = 'fleet'::text) AND (later.stream = served.stream) AND (later.stream_version > served.stream_version) AND (later.type = 'adapter.withdrawn'::text) AND ((later.payload ->> 'model'::text) = (served.payload ->> 'model'::text)))
          ORDER BY later.stream_version
         LIMIT 1) withdrawn ON (true))
  WHERE ((served.tenant_id = 'fleet'::text) AND (served.type = 'adapter.served'::text));


ALTER VIEW audit.engine_adapters OWNER TO everturn_owner;

--
-- Name: engines; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.engines AS
 SELECT "position",
    (payload ->> 'boot'::text) AS engine,
    (payload ->> 'revision'::text) AS revision,
    (payload ->> 'role'::text) AS role,
    (payload ->> 'address'::text) AS address,
    occurred_at AS registered_at
   FROM public.events
  WHERE ((tenant_id = 'fleet'::text) AND (type = 'engine.registered'::text));


ALTER VIEW audit.engines OWNER TO everturn_owner;

--
-- Name: kv_deletions; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.kv_deletions (
    artifact_id text NOT NULL,
    tenant_id text NOT NULL,
    conversation_id text NOT NULL,
    asked_at timestamp with time zone NOT NULL,
    tries bigint DEFAULT 0 NOT NULL,
    tried_at timestamp with time zone,
    store text,
    found boolean,
    failure text,
    left_names text[],
    done_at timestamp with time zone,
    CONSTRAINT ck_kv_deletions_done CHECK (((done_at IS NULL) OR (failure IS NULL))),
    CONSTRAINT ck_kv_deletions_tries CHECK (((tries >= 0) AND ((tries = 0) = (tried_at IS NULL))))
);

ALTER TABLE ONLY public.kv_deletions FORCE ROW LEVEL SECURITY;


ALTER TABLE public.kv_deletions OWNER TO everturn_owner;

--
-- Name: erasures; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.erasures AS
 SELECT "position",
    tenant_id,
    stream AS conversation_id,
    (payload ->> 'by'::text) AS erased_by,
    (payload ->> 'reason'::text) AS reason,
    occurred_at AS erased_at,
    ( SELECT count(*) AS count
           FROM public.event_contents kept
          WHERE ((kept.tenant_id = tombstone.tenant_id) AND (kept.stream = tombstone.stream))) AS contents_left,
    ( SELECT count(*) AS count
           FROM public.kv_deletions kv
          WHERE ((kv.tenant_id = tombstone.tenant_id) AND (kv.conversation_id = tombstone.stream) AND (kv.done_at IS NULL))) AS kv_left
   FROM public.events tombstone
  WHERE (type = 'conversation.erased'::text);


ALTER VIEW audit.erasures OWNER TO everturn_owner;

--
-- Name: forks; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.forks AS
 SELECT forked."position",
    forked.tenant_id,
    forked.stream AS conversation_id,
    (forked.payload ->> 'parent'::text) AS parent_id,
    (forked.payload ->> 'turn'::text) AS after_turn_id,
    ((forked.payload ->> 'parent_version'::text))::bigint AS parent_version,
    ( WITH RECURSIVE lineage AS (
                 SELECT (forked.payload ->> 'parent'::text) AS ancestor,
                    1 AS generation
                UNION ALL
                 SELECT (earlier.payload ->> 'parent'::text),
                    (lineage_1.generation + 1)
                   FROM (lineage lineage_1
                     JOIN public.events earlier ON (((earlier.tenant_id = forked.tenant_id) AND (earlier.stream = lineage_1.ancestor) AND (earlier.stream_version = 2) AND (earlier.type = 'conversation.forked'::text))))
                  WHERE (lineage_1.generation < 100)
                )
         SELECT array_agg(lineage.ancestor ORDER BY lineage.generation) AS array_agg
           FROM lineage) AS ancestors,
    COALESCE((parent.chain = decode((forked.payload ->> 'parent_chain'::text), 'hex'::text)), false) AS parent_intact,
    forked.occurred_at AS forked_at
   FROM (public.events forked
     LEFT JOIN public.events parent ON (((parent.tenant_id = forked.tenant_id) AND (parent.stream = (forked.payload ->> 'parent'::text)) AND (parent.stream_version = ((forked.payload ->> 'parent_version'::text))::bigint))))
  WHERE (forked.type = 'conversation.forked'::text);


ALTER VIEW audit.forks OWNER TO everturn_owner;

--
-- Name: api_keys; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.api_keys (
    key_id text NOT NULL,
    tenant_id text,
    scope text NOT NULL,
    secret_sha256 bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    label text,
    created_by text,
    replaces text,
    revoked_at timestamp with time zone,
    revoked_by text,
    CONSTRAINT ck_api_keys_revoked CHECK (((revoked_at IS NULL) = (revoked_by IS NULL))),
    CONSTRAINT ck_api_keys_scope CHECK ((scope = ANY (ARRAY['tenant'::text, 'operator'::text, 'auditor'::text, 'engine'::text]))),
    CONSTRAINT ck_api_keys_secret_sha256 CHECK ((octet_length(secret_sha256) = 32)),
    CONSTRAINT ck_api_keys_tenant CHECK (((scope = 'tenant'::text) = (tenant_id IS NOT NULL)))
);

ALTER TABLE ONLY public.api_keys FORCE ROW LEVEL SECURITY;


ALTER TABLE public.api_keys OWNER TO everturn_owner;

--
-- Name: keys; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.keys AS
 SELECT key_id,
    tenant_id,
    scope,
    label,
    created_at,
    created_by,
    replaces,
    revoked_at,
    revoked_by
   FROM public.api_keys;


ALTER VIEW audit.keys OWNER TO everturn_owner;

--
-- Name: kv_deletions; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.kv_deletions AS
 SELECT artifact_id,
    tenant_id,
    conversation_id,
    asked_at,
        CASE
            WHEN ((done_at IS NOT NULL) AND found) THEN 'deleted'::text
            WHEN (done_at IS NOT NULL) THEN 'not there'::text
            WHEN (failure IS NOT NULL) THEN 'failed'::text
            ELSE 'waiting'::text
        END AS state,
    tries,
    store,
    failure,
    done_at
   FROM public.kv_deletions;


ALTER VIEW audit.kv_deletions OWNER TO everturn_owner;

--
-- Name: rebuild_cost; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.rebuild_cost AS
 SELECT rebuilt."position",
    rebuilt.tenant_id,
    rebuilt.stream AS conversation_id,
    (rebuilt.payload ->> 'turn'::text) AS turn_id,
    ((rebuilt.payload ->> 'attempt'::text))::bigint AS attempt,
    (rebuilt.payload ->> 'rebuild'::text) AS rebuild_id,
    (rebuilt.payload ->> 'artifact'::text) AS artifact_id,
    (rebuilt.payload ->> 'revision'::text) AS revision,
    (rebuilt.payload ->> 'producer'::text) AS engine,
    ((rebuilt.payload ->> 'tokens'::text))::bigint AS tokens,
    pinned.occurred_at AS decided_at,
    rebuilt.occurred_at AS rebuilt_at,
    EXTRACT(epoch FROM (rebuilt.occurred_at - pinned.occurred_at)) AS turn_waited_seconds,
    job.fence,
    EXTRACT(epoch FROM (job.finished_at - job.started_at)) AS ran_seconds,
    (job.turn_id <> (rebuilt.payload ->> 'turn'::text)) AS shared
   FROM ((public.events rebuilt
     LEFT JOIN public.events pinned ON (((pinned.type = 'turn.pinned'::text) AND (pinned.tenant_id = rebuilt.tenant_id) AND ((pinned.payload ->> 'turn'::text) = (rebuilt.payload ->> 'turn'::text)) AND ((pinned.payload ->> 'attempt'::text) = (rebuilt.payload ->> 'attempt'::text)))))
     LEFT JOIN public.rebuilds job ON (((job.rebuild_id = (rebuilt.payload ->> 'rebuild'::text)) AND (job.tenant_id = rebuilt.tenant_id))))
  WHERE (rebuilt.type = 'kv.rebuilt'::text);


ALTER VIEW audit.rebuild_cost OWNER TO everturn_owner;

--
-- Name: rebuild_jobs; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.rebuild_jobs AS
 SELECT rebuild_id,
    tenant_id,
    conversation_id,
    turn_id,
    attempt,
    revision,
    queue,
    state,
    fence,
    owner,
    tokens_total,
    tokens_done,
    engine_boot AS engine,
    artifact_id,
    reason,
    created_at,
    started_at,
    finished_at,
    rollout_id,
    cardinality(partials) AS chunks
   FROM public.rebuilds;


ALTER VIEW audit.rebuild_jobs OWNER TO everturn_owner;

--
-- Name: refusals; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.refusals AS
 SELECT "position",
    tenant_id,
    stream AS conversation_id,
    (payload ->> 'turn'::text) AS turn_id,
    ((payload ->> 'attempt'::text))::bigint AS attempt,
    occurred_at AS refused_at,
    (payload #>> '{refusal,artifact}'::text[]) AS artifact_id,
    (payload #>> '{refusal,artifact_revision}'::text[]) AS artifact_revision,
    (payload #>> '{refusal,artifact_producer}'::text[]) AS artifact_producer,
    (payload ->> 'engine'::text) AS engine,
    (payload ->> 'engine_revision'::text) AS engine_revision,
    (payload #>> '{refusal,reason}'::text[]) AS reason,
    (payload #>> '{refusal,detail}'::text[]) AS detail,
    ARRAY( SELECT jsonb_array_elements_text((events.payload #> '{refusal,differing}'::text[])) AS jsonb_array_elements_text) AS differing
   FROM public.events
  WHERE (type = 'kv.refused'::text);


ALTER VIEW audit.refusals OWNER TO everturn_owner;

--
-- Name: revisions; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.revisions (
    revision text NOT NULL,
    descriptor json NOT NULL,
    label text,
    registered_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT ck_revisions_revision CHECK ((revision ~ '^rev_[0-9a-f]{64}$'::text))
);


ALTER TABLE public.revisions OWNER TO everturn_owner;

--
-- Name: revisions; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.revisions AS
 SELECT revision,
    label,
    registered_at,
    (descriptor #>> '{kv,weights}'::text[]) AS weights,
    (descriptor #>> '{kv,adapter}'::text[]) AS adapter,
    (descriptor #>> '{kv,quantization}'::text[]) AS quantization,
    (descriptor #>> '{kv,compute_dtype}'::text[]) AS compute_dtype,
    (descriptor #>> '{kv,attention_backend}'::text[]) AS attention_backend,
    (descriptor #>> '{kv,engine}'::text[]) AS engine,
    (descriptor #>> '{kv,engine_version}'::text[]) AS engine_version,
    (descriptor #>> '{text,tokenizer}'::text[]) AS tokenizer,
    (descriptor #>> '{text,chat_template}'::text[]) AS chat_template,
    descriptor
   FROM public.revisions;


ALTER VIEW audit.revisions OWNER TO everturn_owner;

--
-- Name: rollout_turns; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.rollout_turns AS
 SELECT pinned."position",
    (pinned.payload ->> 'rollout'::text) AS rollout_id,
    ((pinned.payload ->> 'rollout_step'::text))::bigint AS step,
    pinned.tenant_id,
    pinned.stream AS conversation_id,
    (pinned.payload ->> 'turn'::text) AS turn_id,
    ((pinned.payload ->> 'attempt'::text))::bigint AS attempt,
    (pinned.payload ->> 'plan'::text) AS plan,
    (pinned.payload ->> 'revision'::text) AS revision,
        CASE (pinned.payload ->> 'revision'::text)
            WHEN (started.payload ->> 'source'::text) THEN 'source'::text
            WHEN (started.payload ->> 'target'::text) THEN 'target'::text
            ELSE 'neither'::text
        END AS side,
    pinned.occurred_at AS decided_at
   FROM (public.events pinned
     JOIN public.events started ON (((started.tenant_id = 'fleet'::text) AND (started.stream = ('rollout/'::text || (pinned.payload ->> 'rollout'::text))) AND (started.stream_version = 1))))
  WHERE ((pinned.type = 'turn.pinned'::text) AND ((pinned.payload ->> 'rollout'::text) IS NOT NULL));


ALTER VIEW audit.rollout_turns OWNER TO everturn_owner;

--
-- Name: rollouts; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.rollouts AS
 SELECT moved."position",
    (moved.payload ->> 'rollout'::text) AS rollout_id,
    (started.payload ->> 'alias'::text) AS alias,
    (started.payload ->> 'source'::text) AS source,
    (started.payload ->> 'target'::text) AS target,
    (started.payload ->> 'back_of'::text) AS back_of,
    replace(moved.type, 'rollout.'::text, ''::text) AS moved,
    (moved.payload ->> 'state'::text) AS state,
    ((moved.payload ->> 'step'::text))::bigint AS step,
    ((moved.payload ->> 'percent'::text))::bigint AS percent,
    (moved.payload ->> 'by'::text) AS moved_by,
    (moved.payload ->> 'reason'::text) AS reason,
    moved.occurred_at AS moved_at
   FROM (public.events moved
     JOIN public.events started ON (((started.tenant_id = moved.tenant_id) AND (started.stream = moved.stream) AND (started.stream_version = 1))))
  WHERE ((moved.tenant_id = 'fleet'::text) AND (moved.type = ANY (ARRAY['rollout.started'::text, 'rollout.stepped'::text, 'rollout.paused'::text, 'rollout.resumed'::text, 'rollout.aborted'::text, 'rollout.rolled_back'::text, 'rollout.done'::text])));


ALTER VIEW audit.rollouts OWNER TO everturn_owner;

--
-- Name: tenant_policies; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.tenant_policies AS
 SELECT "position",
    (payload ->> 'tenant'::text) AS tenant_id,
    (payload ->> 'previous'::text) AS previous,
    (payload ->> 'on_upgrade'::text) AS on_upgrade,
    (payload ->> 'by'::text) AS set_by,
    occurred_at AS set_at,
    lead(occurred_at) OVER (PARTITION BY stream ORDER BY stream_version) AS held_until
   FROM public.events
  WHERE ((tenant_id = 'fleet'::text) AND (type = 'tenant.policy_set'::text));


ALTER VIEW audit.tenant_policies OWNER TO everturn_owner;

--
-- Name: artifacts; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.artifacts (
    artifact_id text NOT NULL,
    tenant_id text NOT NULL,
    conversation_id text NOT NULL,
    revision text NOT NULL,
    producer text NOT NULL,
    made_by text NOT NULL,
    tokens bigint NOT NULL,
    blocks bigint NOT NULL,
    bytes bigint NOT NULL,
    tip text NOT NULL,
    expires_ms bigint NOT NULL,
    recorded_at timestamp with time zone NOT NULL,
    CONSTRAINT ck_artifacts_artifact_id CHECK ((artifact_id ~ '^kv_[0-9a-z]{8,64}$'::text)),
    CONSTRAINT ck_artifacts_made_by CHECK ((made_by = ANY (ARRAY['prefill'::text, 'decode'::text]))),
    CONSTRAINT ck_artifacts_revision CHECK ((revision ~ '^rev_[0-9a-f]{64}$'::text)),
    CONSTRAINT ck_artifacts_size CHECK (((tokens > 0) AND (blocks > 0) AND (bytes > 0)))
);

ALTER TABLE ONLY public.artifacts FORCE ROW LEVEL SECURITY;


ALTER TABLE public.artifacts OWNER TO everturn_owner;

--
-- Name: tenants; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.tenants (
    tenant_id text NOT NULL,
    on_upgrade text,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT ck_tenants_on_upgrade CHECK ((on_upgrade = ANY (ARRAY['replay'::text, 'stay'::text, 'stay_strict'::text]))),
    CONSTRAINT ck_tenants_tenant_id CHECK (((tenant_id ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$'::text) AND (tenant_id <> 'fleet'::text)))
);

ALTER TABLE ONLY public.tenants FORCE ROW LEVEL SECURITY;


ALTER TABLE public.tenants OWNER TO everturn_owner;

--
-- Name: tenant_storage; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.tenant_storage AS
 SELECT tenants.tenant_id,
    COALESCE(log.conversations, (0)::bigint) AS conversations,
    COALESCE(log.events, (0)::bigint) AS events,
    COALESCE(log.bytes, (0)::bigint) AS event_bytes,
    COALESCE(said.text_bytes, (0)::bigint) AS text_bytes,
    COALESCE(said.tokens, (0)::bigint) AS tokens,
    COALESCE(kv.artifacts, (0)::bigint) AS artifacts,
    COALESCE(kv.bytes, (0)::numeric) AS kv_bytes
   FROM (((public.tenants
     LEFT JOIN ( SELECT events.tenant_id,
            count(*) FILTER (WHERE (events.type = 'conversation.created'::text)) AS conversations,
            count(*) AS events,
            sum(pg_column_size(events.payload)) AS bytes
           FROM public.events
          GROUP BY events.tenant_id) log USING (tenant_id))
     LEFT JOIN ( SELECT event_contents.tenant_id,
            sum(octet_length(event_contents.content)) AS text_bytes,
            (sum(octet_length(event_contents.tokens)) / 4) AS tokens
           FROM public.event_contents
          GROUP BY event_contents.tenant_id) said USING (tenant_id))
     LEFT JOIN ( SELECT artifacts.tenant_id,
            count(*) AS artifacts,
            sum(artifacts.bytes) AS bytes
           FROM public.artifacts
          GROUP BY artifacts.tenant_id) kv USING (tenant_id));


ALTER VIEW audit.tenant_storage OWNER TO everturn_owner;

--
-- Name: tenant_limits; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.tenant_limits (
    tenant_id text NOT NULL,
    request_bytes bigint,
    items bigint,
    conversations bigint,
    concurrent_turns bigint,
    tokens bigint,
    set_at timestamp with time zone NOT NULL,
    set_by text NOT NULL,
    CONSTRAINT ck_tenant_limits_numbers CHECK (((LEAST(request_bytes, items, conversations, concurrent_turns, tokens) IS NULL) OR (LEAST(request_bytes, items, conversations, concurrent_turns, tokens) > 0)))
);

ALTER TABLE ONLY public.tenant_limits FORCE ROW LEVEL SECURITY;


ALTER TABLE public.tenant_limits OWNER TO everturn_owner;

--
-- Name: tenant_retention; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.tenant_retention (
    tenant_id text NOT NULL,
    after_days bigint NOT NULL,
    set_at timestamp with time zone NOT NULL,
    set_by text NOT NULL,
    CONSTRAINT ck_tenant_retention_after_days CHECK (((after_days >= 1) AND (after_days <= 36500)))
);

ALTER TABLE ONLY public.tenant_retention FORCE ROW LEVEL SECURITY;


ALTER TABLE public.tenant_retention OWNER TO everturn_owner;

--
-- Name: tenants; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.tenants AS
 SELECT tenants.tenant_id,
    tenants.on_upgrade,
    tenants.created_at,
    limits.request_bytes,
    limits.items,
    limits.conversations,
    limits.concurrent_turns,
    limits.tokens,
    limits.set_at,
    limits.set_by,
    retention.after_days AS erased_after_days,
    retention.set_at AS retention_set_at,
    retention.set_by AS retention_set_by
   FROM ((public.tenants
     LEFT JOIN public.tenant_limits limits USING (tenant_id))
     LEFT JOIN public.tenant_retention retention USING (tenant_id));


ALTER VIEW audit.tenants OWNER TO everturn_owner;

--
-- Name: turns; Type: VIEW; Schema: audit; Owner: everturn_owner
--

CREATE VIEW audit.turns AS
 SELECT started."position",
    started.tenant_id,
    started.stream AS conversation_id,
    (started.payload ->> 'turn'::text) AS turn_id,
    row_number() OVER (PARTITION BY started.tenant_id, started.stream ORDER BY started.stream_version) AS turn_number,
    (started.payload ->> 'alias'::text) AS alias,
        CASE
            WHEN (completed."position" IS NOT NULL) THEN 'completed'::text
            WHEN (failed."position" IS NOT NULL) THEN 'failed'::text
            ELSE 'running'::text
        END AS state,
    (completed.payload ->> 'engine_revision'::text) AS revision,
    ((completed.payload ->> 'attempt'::text))::bigint AS completed_attempt,
    (completed.payload ->> 'finish_reason'::text) AS finish_reason,
    ((completed.payload ->> 'prompt_tokens'::text))::bigint AS prompt_tokens,
    ((completed.payload ->> 'output'::text))::bigint AS output_tokens,
    (failed.payload ->> 'code'::text) AS failure_code,
    (failed.payload ->> 'message'::text) AS failure_message,
    started.occurred_at AS started_at,
    COALESCE(completed.occurred_at, failed.occurred_at) AS ended_at,
    EXTRACT(epoch FROM (COALESCE(completed.occurred_at, failed.occurred_at) - started.occurred_at)) AS seconds
   FROM ((public.events started
     LEFT JOIN public.events completed ON (((completed.type = 'turn.completed'::text) AND (completed.tenant_id = started.tenant_id) AND ((completed.payload ->> 'turn'::text) = (started.payload ->> 'turn'::text)))))
     LEFT JOIN public.events failed ON (((failed.type = 'turn.failed'::text) AND (failed.tenant_id = started.tenant_id) AND ((failed.payload ->> 'turn'::text) = (started.payload ->> 'turn'::text)))))
  WHERE (started.type = 'turn.started'::text);


ALTER VIEW audit.turns OWNER TO everturn_owner;

--
-- Name: aliases; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.aliases (
    alias text NOT NULL,
    revision text NOT NULL,
    on_upgrade text,
    moved_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT ck_aliases_alias CHECK ((alias <> ''::text)),
    CONSTRAINT ck_aliases_on_upgrade CHECK ((on_upgrade = ANY (ARRAY['replay'::text, 'stay'::text, 'stay_strict'::text])))
);


ALTER TABLE public.aliases OWNER TO everturn_owner;

--
-- Name: contracts; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.contracts (
    contract_id text NOT NULL,
    reader text NOT NULL,
    producer text NOT NULL,
    terms json NOT NULL,
    ends_ms bigint NOT NULL,
    revoked_at timestamp with time zone,
    CONSTRAINT ck_contracts_contract_id CHECK ((contract_id ~ '^ctr_[0-9a-f]{64}$'::text)),
    CONSTRAINT ck_contracts_parties CHECK ((reader <> producer))
);


ALTER TABLE public.contracts OWNER TO everturn_owner;

--
-- Name: engine_adapters; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.engine_adapters (
    boot text NOT NULL,
    model text NOT NULL,
    revision text,
    reason text,
    told_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT ck_engine_adapters_known CHECK (((revision IS NULL) = (reason IS NOT NULL))),
    CONSTRAINT ck_engine_adapters_model CHECK ((model <> ''::text))
);


ALTER TABLE public.engine_adapters OWNER TO everturn_owner;

--
-- Name: turns; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.turns (
    turn_id text NOT NULL,
    tenant_id text NOT NULL,
    conversation_id text NOT NULL,
    idempotency_key text,
    request_hash text NOT NULL,
    owner text,
    lease_expires_at timestamp with time zone,
    closed boolean DEFAULT false NOT NULL,
    opened_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    background boolean DEFAULT false NOT NULL,
    streamed boolean DEFAULT false NOT NULL,
    finish boolean DEFAULT false NOT NULL,
    claims bigint DEFAULT 0 NOT NULL,
    deadline_at timestamp with time zone,
    queued_at timestamp with time zone,
    recovered_at timestamp with time zone,
    CONSTRAINT ck_turns_lease CHECK (((closed = (owner IS NULL)) AND (closed = (lease_expires_at IS NULL))))
);

ALTER TABLE ONLY public.turns FORCE ROW LEVEL SECURITY;


ALTER TABLE public.turns OWNER TO everturn_owner;

--
-- Name: engine_load; Type: VIEW; Schema: public; Owner: everturn_owner
--

CREATE VIEW public.engine_load AS
 SELECT busy.engine,
    count(*) AS attempts
   FROM ((public.turns
     CROSS JOIN LATERAL ( SELECT (events.payload ->> 'turn'::text) AS turn_id,
            (events.payload ->> 'engine'::text) AS engine,
            (events.payload ->> 'prefill'::text) AS prefill
           FROM public.events
          WHERE ((events.tenant_id = turns.tenant_id) AND (events.stream = turns.conversation_id) AND (events.type = 'turn.pinned'::text))
          ORDER BY events.stream_version DESC
         LIMIT 1) pinned)
     CROSS JOIN LATERAL ( VALUES (pinned.engine), (pinned.prefill)) busy(engine))
  WHERE ((NOT turns.closed) AND (turns.turn_id = pinned.turn_id) AND (busy.engine IS NOT NULL))
  GROUP BY busy.engine;


ALTER VIEW public.engine_load OWNER TO everturn_owner;

--
-- Name: engines; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.engines (
    boot text NOT NULL,
    revision text NOT NULL,
    address text NOT NULL,
    role text NOT NULL,
    state text NOT NULL,
    lease_expires_at timestamp with time zone NOT NULL,
    registered_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    registered_by text,
    requests bigint,
    CONSTRAINT ck_engines_boot CHECK ((boot <> ''::text)),
    CONSTRAINT ck_engines_requests CHECK ((requests >= 0)),
    CONSTRAINT ck_engines_role CHECK ((role = ANY (ARRAY['both'::text, 'prefill'::text, 'decode'::text]))),
    CONSTRAINT ck_engines_state CHECK ((state = ANY (ARRAY['ready'::text, 'draining'::text, 'gone'::text])))
);


ALTER TABLE public.engines OWNER TO everturn_owner;

--
-- Name: events_position_seq; Type: SEQUENCE; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.events ALTER COLUMN "position" ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.events_position_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: everturn_schema; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.everturn_schema (
    version_num character varying(32) NOT NULL
);


ALTER TABLE public.everturn_schema OWNER TO everturn_owner;

--
-- Name: rollout_warmups; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.rollout_warmups (
    rollout_id text NOT NULL,
    place bigint NOT NULL,
    tenant_id text NOT NULL,
    conversation_id text NOT NULL,
    tokens bigint DEFAULT 0 NOT NULL,
    rebuild_id text,
    skipped text,
    CONSTRAINT ck_rollout_warmups_outcome CHECK (((rebuild_id IS NULL) OR (skipped IS NULL))),
    CONSTRAINT ck_rollout_warmups_tokens CHECK ((tokens >= 0))
);

ALTER TABLE ONLY public.rollout_warmups FORCE ROW LEVEL SECURITY;


ALTER TABLE public.rollout_warmups OWNER TO everturn_owner;

--
-- Name: rollouts; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.rollouts (
    rollout_id text NOT NULL,
    alias text NOT NULL,
    source text NOT NULL,
    target text NOT NULL,
    state text NOT NULL,
    step bigint NOT NULL,
    percent bigint NOT NULL,
    version bigint NOT NULL,
    strategy json NOT NULL,
    reason text NOT NULL,
    waiting text,
    started_at timestamp with time zone NOT NULL,
    since timestamp with time zone NOT NULL,
    counted_from bigint NOT NULL,
    counted_since timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    CONSTRAINT ck_rollouts_ended CHECK (((state = ANY (ARRAY['planned'::text, 'warming'::text, 'shifting'::text, 'draining'::text, 'paused'::text])) = (ended_at IS NULL))),
    CONSTRAINT ck_rollouts_numbers CHECK (((step >= 0) AND ((percent >= 0) AND (percent <= 100)) AND (version > 0))),
    CONSTRAINT ck_rollouts_revisions CHECK ((source <> target)),
    CONSTRAINT ck_rollouts_state CHECK ((state = ANY (ARRAY['planned'::text, 'warming'::text, 'shifting'::text, 'draining'::text, 'done'::text, 'paused'::text, 'aborted'::text, 'rolled_back'::text])))
);


ALTER TABLE public.rollouts OWNER TO everturn_owner;

--
-- Name: turn_chunks; Type: TABLE; Schema: public; Owner: everturn_owner
--

CREATE TABLE public.turn_chunks (
    turn_id text NOT NULL,
    tenant_id text NOT NULL,
    number bigint NOT NULL,
    claim bigint NOT NULL,
    attempt bigint NOT NULL,
    revision text NOT NULL,
    pieces text NOT NULL,
    content bytea NOT NULL,
    CONSTRAINT ck_turn_chunks_numbers CHECK (((number >= 0) AND (claim >= 0) AND (attempt > 0))),
    CONSTRAINT ck_turn_chunks_revision CHECK ((revision ~ '^rev_[0-9a-f]{64}$'::text))
);

ALTER TABLE ONLY public.turn_chunks FORCE ROW LEVEL SECURITY;


ALTER TABLE public.turn_chunks OWNER TO everturn_owner;

--
-- Name: everturn_schema everturn_schema_pkc; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.everturn_schema
    ADD CONSTRAINT everturn_schema_pkc PRIMARY KEY (version_num);


--
-- Name: aliases pk_aliases; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.aliases
    ADD CONSTRAINT pk_aliases PRIMARY KEY (alias);


--
-- Name: api_keys pk_api_keys; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT pk_api_keys PRIMARY KEY (key_id);


--
-- Name: artifacts pk_artifacts; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.artifacts
    ADD CONSTRAINT pk_artifacts PRIMARY KEY (artifact_id);


--
-- Name: contracts pk_contracts; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.contracts
    ADD CONSTRAINT pk_contracts PRIMARY KEY (contract_id);


--
-- Name: engine_adapters pk_engine_adapters; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.engine_adapters
    ADD CONSTRAINT pk_engine_adapters PRIMARY KEY (boot, model);


--
-- Name: engines pk_engines; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.engines
    ADD CONSTRAINT pk_engines PRIMARY KEY (boot);


--
-- Name: event_contents pk_event_contents; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.event_contents
    ADD CONSTRAINT pk_event_contents PRIMARY KEY (tenant_id, stream, stream_version);


--
-- Name: events pk_events; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.events
    ADD CONSTRAINT pk_events PRIMARY KEY ("position");


--
-- Name: kv_deletions pk_kv_deletions; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.kv_deletions
    ADD CONSTRAINT pk_kv_deletions PRIMARY KEY (artifact_id);


--
-- Name: rebuilds pk_rebuilds; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.rebuilds
    ADD CONSTRAINT pk_rebuilds PRIMARY KEY (rebuild_id);


--
-- Name: revisions pk_revisions; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.revisions
    ADD CONSTRAINT pk_revisions PRIMARY KEY (revision);


--
-- Name: rollout_warmups pk_rollout_warmups; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.rollout_warmups
    ADD CONSTRAINT pk_rollout_warmups PRIMARY KEY (rollout_id, place);


--
-- Name: rollouts pk_rollouts; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT pk_rollouts PRIMARY KEY (rollout_id);


--
-- Name: tenant_limits pk_tenant_limits; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.tenant_limits
    ADD CONSTRAINT pk_tenant_limits PRIMARY KEY (tenant_id);


--
-- Name: tenant_retention pk_tenant_retention; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.tenant_retention
    ADD CONSTRAINT pk_tenant_retention PRIMARY KEY (tenant_id);


--
-- Name: tenants pk_tenants; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.tenants
    ADD CONSTRAINT pk_tenants PRIMARY KEY (tenant_id);


--
-- Name: turn_chunks pk_turn_chunks; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.turn_chunks
    ADD CONSTRAINT pk_turn_chunks PRIMARY KEY (turn_id, tenant_id, number);


--
-- Name: turns pk_turns; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.turns
    ADD CONSTRAINT pk_turns PRIMARY KEY (turn_id, tenant_id);


--
-- Name: api_keys uq_api_keys_secret_sha256; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT uq_api_keys_secret_sha256 UNIQUE (secret_sha256);


--
-- Name: events uq_events_stream_version; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.events
    ADD CONSTRAINT uq_events_stream_version UNIQUE (tenant_id, stream, stream_version);


--
-- Name: turns uq_turns_idempotency_key; Type: CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.turns
    ADD CONSTRAINT uq_turns_idempotency_key UNIQUE (tenant_id, idempotency_key);


--
-- Name: ix_artifacts_conversation; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_artifacts_conversation ON public.artifacts USING btree (tenant_id, conversation_id, recorded_at);


--
-- Name: ix_engine_adapters_revision; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_engine_adapters_revision ON public.engine_adapters USING btree (revision);


--
-- Name: ix_events_conversations; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_events_conversations ON public.events USING btree (tenant_id, type, stream) WHERE (type = ANY (ARRAY['conversation.created'::text, 'conversation.deleted'::text, 'conversation.erased'::text]));


--
-- Name: ix_events_exceptional; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_events_exceptional ON public.events USING btree (((payload ->> 'turn'::text)), type) WHERE (type = ANY (ARRAY['attempt.failed'::text, 'turn.failed'::text, 'kv.rebuilt'::text]));


--
-- Name: ix_events_failed_attempts; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_events_failed_attempts ON public.events USING btree ("position") WHERE (type = 'attempt.failed'::text);


--
-- Name: ix_events_feed; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_events_feed ON public.events USING btree (txid, "position");


--
-- Name: ix_events_forks; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_events_forks ON public.events USING btree (tenant_id, ((payload ->> 'parent'::text))) WHERE (type = 'conversation.forked'::text);


--
-- Name: ix_events_items_deleted; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_events_items_deleted ON public.events USING btree (tenant_id, stream, stream_version) WHERE (type = 'item.deleted'::text);


--
-- Name: ix_events_lasting; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_events_lasting ON public.events USING btree (tenant_id, stream, stream_version) WHERE (type = ANY (ARRAY['conversation.forked'::text, 'conversation.deleted'::text, 'conversation.erased'::text, 'response.deleted'::text, 'kv.refused'::text, 'turn.failed'::text]));


--
-- Name: ix_events_occurred_at; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_events_occurred_at ON public.events USING brin (occurred_at);


--
-- Name: ix_events_of_rollouts; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_events_of_rollouts ON public.events USING btree (((payload ->> 'rollout'::text)), "position") WHERE ((type = 'turn.pinned'::text) AND ((payload ->> 'rollout'::text) IS NOT NULL));


--
-- Name: ix_events_refused; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_events_refused ON public.events USING btree ("position") WHERE (type = 'kv.refused'::text);


--
-- Name: ix_events_strict; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_events_strict ON public.events USING btree (tenant_id, stream) WHERE ((type = 'turn.started'::text) AND ((payload ->> 'on_upgrade'::text) = 'stay_strict'::text));


--
-- Name: ix_kv_deletions_conversation; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_kv_deletions_conversation ON public.kv_deletions USING btree (tenant_id, conversation_id);


--
-- Name: ix_kv_deletions_waiting; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_kv_deletions_waiting ON public.kv_deletions USING btree (tries, asked_at) WHERE (done_at IS NULL);


--
-- Name: ix_rebuilds_ended; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_rebuilds_ended ON public.rebuilds USING btree (finished_at) WHERE (finished_at IS NOT NULL);


--
-- Name: ix_rebuilds_failed; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_rebuilds_failed ON public.rebuilds USING btree (revision, finished_at) WHERE (state = 'failed'::text);


--
-- Name: ix_rebuilds_partials; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_rebuilds_partials ON public.rebuilds USING btree (tenant_id, conversation_id) WHERE (partials <> '{}'::text[]);


--
-- Name: ix_turns_queued; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_turns_queued ON public.turns USING btree (queued_at) WHERE (queued_at IS NOT NULL);


--
-- Name: ix_turns_recovered; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE INDEX ix_turns_recovered ON public.turns USING btree (recovered_at) WHERE (recovered_at IS NOT NULL);


--
-- Name: uq_events_erased; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE UNIQUE INDEX uq_events_erased ON public.events USING btree (tenant_id, stream) WHERE (type = 'conversation.erased'::text);


--
-- Name: uq_events_turn_completed; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE UNIQUE INDEX uq_events_turn_completed ON public.events USING btree (((payload ->> 'turn'::text)), tenant_id) WHERE (type = 'turn.completed'::text);


--
-- Name: uq_events_turn_pinned; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE UNIQUE INDEX uq_events_turn_pinned ON public.events USING btree (((payload ->> 'turn'::text)), ((payload ->> 'attempt'::text)), tenant_id) WHERE (type = 'turn.pinned'::text);


--
-- Name: uq_events_turn_started; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE UNIQUE INDEX uq_events_turn_started ON public.events USING btree (((payload ->> 'turn'::text)), tenant_id) WHERE (type = 'turn.started'::text);


--
-- Name: uq_rebuilds_active; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE UNIQUE INDEX uq_rebuilds_active ON public.rebuilds USING btree (turn_id, attempt, tenant_id) WHERE (state = ANY (ARRAY['queued'::text, 'running'::text]));


--
-- Name: uq_rebuilds_shared; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE UNIQUE INDEX uq_rebuilds_shared ON public.rebuilds USING btree (tenant_id, conversation_id, revision) WHERE (state = ANY (ARRAY['queued'::text, 'running'::text]));


--
-- Name: uq_rollouts_active; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE UNIQUE INDEX uq_rollouts_active ON public.rollouts USING btree (alias) WHERE (state = ANY (ARRAY['planned'::text, 'warming'::text, 'shifting'::text, 'draining'::text, 'paused'::text]));


--
-- Name: uq_turns_open; Type: INDEX; Schema: public; Owner: everturn_owner
--

CREATE UNIQUE INDEX uq_turns_open ON public.turns USING btree (tenant_id, conversation_id) WHERE (NOT closed);


--
-- Name: event_contents append_only; Type: TRIGGER; Schema: public; Owner: everturn_owner
--

CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON public.event_contents FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();

ALTER TABLE public.event_contents ENABLE ALWAYS TRIGGER append_only;


--
-- Name: events append_only; Type: TRIGGER; Schema: public; Owner: everturn_owner
--

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.events FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();

ALTER TABLE public.events ENABLE ALWAYS TRIGGER append_only;


--
-- Name: revisions append_only; Type: TRIGGER; Schema: public; Owner: everturn_owner
--

CREATE TRIGGER append_only BEFORE DELETE OR UPDATE OR TRUNCATE ON public.revisions FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change();

ALTER TABLE public.revisions ENABLE ALWAYS TRIGGER append_only;


--
-- Name: event_contents erased_only_with_a_tombstone; Type: TRIGGER; Schema: public; Owner: everturn_owner
--

CREATE TRIGGER erased_only_with_a_tombstone AFTER DELETE ON public.event_contents REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_erasure_without_tombstone();

ALTER TABLE public.event_contents ENABLE ALWAYS TRIGGER erased_only_with_a_tombstone;


--
-- Name: aliases fk_aliases_revision; Type: FK CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.aliases
    ADD CONSTRAINT fk_aliases_revision FOREIGN KEY (revision) REFERENCES public.revisions(revision);


--
-- Name: api_keys fk_api_keys_tenant_id; Type: FK CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.api_keys
    ADD CONSTRAINT fk_api_keys_tenant_id FOREIGN KEY (tenant_id) REFERENCES public.tenants(tenant_id);


--
-- Name: contracts fk_contracts_producer; Type: FK CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.contracts
    ADD CONSTRAINT fk_contracts_producer FOREIGN KEY (producer) REFERENCES public.revisions(revision);


--
-- Name: contracts fk_contracts_reader; Type: FK CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.contracts
    ADD CONSTRAINT fk_contracts_reader FOREIGN KEY (reader) REFERENCES public.revisions(revision);


--
-- Name: engine_adapters fk_engine_adapters_revision; Type: FK CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.engine_adapters
    ADD CONSTRAINT fk_engine_adapters_revision FOREIGN KEY (revision) REFERENCES public.revisions(revision);


--
-- Name: engines fk_engines_revision; Type: FK CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.engines
    ADD CONSTRAINT fk_engines_revision FOREIGN KEY (revision) REFERENCES public.revisions(revision);


--
-- Name: rollouts fk_rollouts_source; Type: FK CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT fk_rollouts_source FOREIGN KEY (source) REFERENCES public.revisions(revision);


--
-- Name: rollouts fk_rollouts_target; Type: FK CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.rollouts
    ADD CONSTRAINT fk_rollouts_target FOREIGN KEY (target) REFERENCES public.revisions(revision);


--
-- Name: tenant_limits fk_tenant_limits_tenant_id; Type: FK CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.tenant_limits
    ADD CONSTRAINT fk_tenant_limits_tenant_id FOREIGN KEY (tenant_id) REFERENCES public.tenants(tenant_id);


--
-- Name: tenant_retention fk_tenant_retention_tenant_id; Type: FK CONSTRAINT; Schema: public; Owner: everturn_owner
--

ALTER TABLE ONLY public.tenant_retention
    ADD CONSTRAINT fk_tenant_retention_tenant_id FOREIGN KEY (tenant_id) REFERENCES public.tenants(tenant_id);


--
-- Name: api_keys; Type: ROW SECURITY; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.api_keys ENABLE ROW LEVEL SECURITY;

--
-- Name: artifacts; Type: ROW SECURITY; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.artifacts ENABLE ROW LEVEL SECURITY;

--
-- Name: event_contents; Type: ROW SECURITY; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.event_contents ENABLE ROW LEVEL SECURITY;

--
-- Name: events; Type: ROW SECURITY; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.events ENABLE ROW LEVEL SECURITY;

--
-- Name: kv_deletions; Type: ROW SECURITY; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.kv_deletions ENABLE ROW LEVEL SECURITY;

--
-- Name: api_keys of_all_tenants; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_all_tenants ON public.api_keys TO everturn_owner, everturn_fleet USING (true);


--
-- Name: artifacts of_all_tenants; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_all_tenants ON public.artifacts TO everturn_owner, everturn_fleet USING (true);


--
-- Name: event_contents of_all_tenants; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_all_tenants ON public.event_contents TO everturn_owner, everturn_fleet USING (true);


--
-- Name: events of_all_tenants; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_all_tenants ON public.events TO everturn_owner, everturn_fleet USING (true);


--
-- Name: kv_deletions of_all_tenants; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_all_tenants ON public.kv_deletions TO everturn_owner, everturn_fleet USING (true);


--
-- Name: rebuilds of_all_tenants; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_all_tenants ON public.rebuilds TO everturn_owner, everturn_fleet USING (true);


--
-- Name: rollout_warmups of_all_tenants; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_all_tenants ON public.rollout_warmups TO everturn_owner, everturn_fleet USING (true);


--
-- Name: tenant_limits of_all_tenants; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_all_tenants ON public.tenant_limits TO everturn_owner, everturn_fleet USING (true);


--
-- Name: tenant_retention of_all_tenants; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_all_tenants ON public.tenant_retention TO everturn_owner, everturn_fleet USING (true);


--
-- Name: tenants of_all_tenants; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_all_tenants ON public.tenants TO everturn_owner, everturn_fleet USING (true);


--
-- Name: turn_chunks of_all_tenants; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_all_tenants ON public.turn_chunks TO everturn_owner, everturn_fleet USING (true);


--
-- Name: turns of_all_tenants; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_all_tenants ON public.turns TO everturn_owner, everturn_fleet USING (true);


--
-- Name: api_keys of_one_tenant; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_one_tenant ON public.api_keys TO everturn_service USING ((tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text)));


--
-- Name: artifacts of_one_tenant; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_one_tenant ON public.artifacts TO everturn_service USING ((tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text)));


--
-- Name: event_contents of_one_tenant; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_one_tenant ON public.event_contents TO everturn_service USING ((tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text)));


--
-- Name: events of_one_tenant; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_one_tenant ON public.events TO everturn_service USING ((tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text)));


--
-- Name: kv_deletions of_one_tenant; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_one_tenant ON public.kv_deletions TO everturn_service USING ((tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text)));


--
-- Name: rebuilds of_one_tenant; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_one_tenant ON public.rebuilds TO everturn_service USING ((tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text)));


--
-- Name: tenant_limits of_one_tenant; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_one_tenant ON public.tenant_limits TO everturn_service USING ((tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text)));


--
-- Name: tenant_retention of_one_tenant; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_one_tenant ON public.tenant_retention TO everturn_service USING ((tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text)));


--
-- Name: tenants of_one_tenant; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_one_tenant ON public.tenants TO everturn_service USING ((tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text)));


--
-- Name: turn_chunks of_one_tenant; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_one_tenant ON public.turn_chunks TO everturn_service USING ((tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text)));


--
-- Name: turns of_one_tenant; Type: POLICY; Schema: public; Owner: everturn_owner
--

CREATE POLICY of_one_tenant ON public.turns TO everturn_service USING ((tenant_id = NULLIF(current_setting('app.tenant'::text, true), ''::text)));


--
-- Name: rebuilds; Type: ROW SECURITY; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.rebuilds ENABLE ROW LEVEL SECURITY;

--
-- Name: rollout_warmups; Type: ROW SECURITY; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.rollout_warmups ENABLE ROW LEVEL SECURITY;

--
-- Name: tenant_limits; Type: ROW SECURITY; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.tenant_limits ENABLE ROW LEVEL SECURITY;

--
-- Name: tenant_retention; Type: ROW SECURITY; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.tenant_retention ENABLE ROW LEVEL SECURITY;

--
-- Name: tenants; Type: ROW SECURITY; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.tenants ENABLE ROW LEVEL SECURITY;

--
-- Name: turn_chunks; Type: ROW SECURITY; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.turn_chunks ENABLE ROW LEVEL SECURITY;

--
-- Name: turns; Type: ROW SECURITY; Schema: public; Owner: everturn_owner
--

ALTER TABLE public.turns ENABLE ROW LEVEL SECURITY;

--
-- Name: SCHEMA audit; Type: ACL; Schema: -; Owner: everturn_owner
--

GRANT USAGE ON SCHEMA audit TO everturn_service;
GRANT USAGE ON SCHEMA audit TO everturn_auditor;


--
-- Name: SCHEMA public; Type: ACL; Schema: -; Owner: pg_database_owner
--

GRANT CREATE ON SCHEMA public TO everturn_owner;


--
-- Name: FUNCTION chain_link(state bytea, previous bytea, digest bytea); Type: ACL; Schema: audit; Owner: everturn_owner
--

REVOKE ALL ON FUNCTION audit.chain_link(state bytea, previous bytea, digest bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION audit.chain_link(state bytea, previous bytea, digest bytea) TO everturn_service;
GRANT ALL ON FUNCTION audit.chain_link(state bytea, previous bytea, digest bytea) TO everturn_auditor;


--
-- Name: FUNCTION content_commitment(salt bytea, content bytea, tokens bytea); Type: ACL; Schema: audit; Owner: everturn_owner
--

REVOKE ALL ON FUNCTION audit.content_commitment(salt bytea, content bytea, tokens bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION audit.content_commitment(salt bytea, content bytea, tokens bytea) TO everturn_service;
GRANT ALL ON FUNCTION audit.content_commitment(salt bytea, content bytea, tokens bytea) TO everturn_auditor;


--
-- Name: FUNCTION event_digest(tenant_id text, stream text, stream_version bigint, type text, schema_number bigint, occurred_at timestamp with time zone, payload jsonb, commitment bytea); Type: ACL; Schema: audit; Owner: everturn_owner
--

REVOKE ALL ON FUNCTION audit.event_digest(tenant_id text, stream text, stream_version bigint, type text, schema_number bigint, occurred_at timestamp with time zone, payload jsonb, commitment bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION audit.event_digest(tenant_id text, stream text, stream_version bigint, type text, schema_number bigint, occurred_at timestamp with time zone, payload jsonb, commitment bytea) TO everturn_service;
GRANT ALL ON FUNCTION audit.event_digest(tenant_id text, stream text, stream_version bigint, type text, schema_number bigint, occurred_at timestamp with time zone, payload jsonb, commitment bytea) TO everturn_auditor;


--
-- Name: FUNCTION token_ids(packed bytea); Type: ACL; Schema: audit; Owner: everturn_owner
--

REVOKE ALL ON FUNCTION audit.token_ids(packed bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION audit.token_ids(packed bytea) TO everturn_service;
GRANT ALL ON FUNCTION audit.token_ids(packed bytea) TO everturn_auditor;


--
-- Name: TABLE event_contents; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT,INSERT,DELETE ON TABLE public.event_contents TO everturn_service;


--
-- Name: TABLE events; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT ON TABLE public.events TO everturn_service;


--
-- Name: COLUMN events.tenant_id; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT INSERT(tenant_id) ON TABLE public.events TO everturn_service;


--
-- Name: COLUMN events.stream; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT INSERT(stream) ON TABLE public.events TO everturn_service;


--
-- Name: COLUMN events.stream_version; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT INSERT(stream_version) ON TABLE public.events TO everturn_service;


--
-- Name: COLUMN events.type; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT INSERT(type) ON TABLE public.events TO everturn_service;


--
-- Name: COLUMN events.schema_number; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT INSERT(schema_number) ON TABLE public.events TO everturn_service;


--
-- Name: COLUMN events.occurred_at; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT INSERT(occurred_at) ON TABLE public.events TO everturn_service;


--
-- Name: COLUMN events.payload; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT INSERT(payload) ON TABLE public.events TO everturn_service;


--
-- Name: COLUMN events.commitment; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT INSERT(commitment) ON TABLE public.events TO everturn_service;


--
-- Name: COLUMN events.chain; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT INSERT(chain) ON TABLE public.events TO everturn_service;


--
-- Name: TABLE turn_tokens; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.turn_tokens TO everturn_auditor;
GRANT SELECT ON TABLE audit.turn_tokens TO everturn_fleet;


--
-- Name: FUNCTION prompt_of(wanted text); Type: ACL; Schema: audit; Owner: everturn_owner
--

REVOKE ALL ON FUNCTION audit.prompt_of(wanted text) FROM PUBLIC;
GRANT ALL ON FUNCTION audit.prompt_of(wanted text) TO everturn_service;
GRANT ALL ON FUNCTION audit.prompt_of(wanted text) TO everturn_auditor;


--
-- Name: FUNCTION refuse_change(); Type: ACL; Schema: public; Owner: everturn_owner
--

REVOKE ALL ON FUNCTION public.refuse_change() FROM PUBLIC;


--
-- Name: FUNCTION refuse_erasure_without_tombstone(); Type: ACL; Schema: public; Owner: everturn_owner
--

REVOKE ALL ON FUNCTION public.refuse_erasure_without_tombstone() FROM PUBLIC;


--
-- Name: FUNCTION chained(bytea, bytea); Type: ACL; Schema: audit; Owner: everturn_owner
--

REVOKE ALL ON FUNCTION audit.chained(bytea, bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION audit.chained(bytea, bytea) TO everturn_service;
GRANT ALL ON FUNCTION audit.chained(bytea, bytea) TO everturn_auditor;


--
-- Name: TABLE alias_history; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.alias_history TO everturn_fleet;
GRANT SELECT ON TABLE audit.alias_history TO everturn_auditor;


--
-- Name: TABLE rebuilds; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.rebuilds TO everturn_service;


--
-- Name: TABLE artifacts; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.artifacts TO everturn_fleet;
GRANT SELECT ON TABLE audit.artifacts TO everturn_auditor;


--
-- Name: TABLE attempts; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.attempts TO everturn_fleet;
GRANT SELECT ON TABLE audit.attempts TO everturn_auditor;


--
-- Name: TABLE chain_breaks; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.chain_breaks TO everturn_auditor;
GRANT SELECT ON TABLE audit.chain_breaks TO everturn_fleet;


--
-- Name: TABLE contracts_used; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.contracts_used TO everturn_fleet;
GRANT SELECT ON TABLE audit.contracts_used TO everturn_auditor;


--
-- Name: TABLE turn_provenance; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.turn_provenance TO everturn_auditor;
GRANT SELECT ON TABLE audit.turn_provenance TO everturn_fleet;


--
-- Name: TABLE cross_revision_hits; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.cross_revision_hits TO everturn_auditor;
GRANT SELECT ON TABLE audit.cross_revision_hits TO everturn_fleet;


--
-- Name: TABLE decisions; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.decisions TO everturn_fleet;
GRANT SELECT ON TABLE audit.decisions TO everturn_auditor;


--
-- Name: TABLE engine_adapters; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.engine_adapters TO everturn_fleet;
GRANT SELECT ON TABLE audit.engine_adapters TO everturn_auditor;


--
-- Name: TABLE engines; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.engines TO everturn_fleet;
GRANT SELECT ON TABLE audit.engines TO everturn_auditor;


--
-- Name: TABLE kv_deletions; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT INSERT ON TABLE public.kv_deletions TO everturn_service;
GRANT SELECT,INSERT,UPDATE ON TABLE public.kv_deletions TO everturn_fleet;


--
-- Name: TABLE erasures; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.erasures TO everturn_fleet;
GRANT SELECT ON TABLE audit.erasures TO everturn_auditor;


--
-- Name: TABLE forks; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.forks TO everturn_fleet;
GRANT SELECT ON TABLE audit.forks TO everturn_auditor;


--
-- Name: TABLE api_keys; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT,INSERT ON TABLE public.api_keys TO everturn_fleet;


--
-- Name: COLUMN api_keys.revoked_at; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT UPDATE(revoked_at) ON TABLE public.api_keys TO everturn_fleet;


--
-- Name: COLUMN api_keys.revoked_by; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT UPDATE(revoked_by) ON TABLE public.api_keys TO everturn_fleet;


--
-- Name: TABLE keys; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.keys TO everturn_fleet;
GRANT SELECT ON TABLE audit.keys TO everturn_auditor;


--
-- Name: TABLE kv_deletions; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.kv_deletions TO everturn_fleet;
GRANT SELECT ON TABLE audit.kv_deletions TO everturn_auditor;


--
-- Name: TABLE rebuild_cost; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.rebuild_cost TO everturn_fleet;
GRANT SELECT ON TABLE audit.rebuild_cost TO everturn_auditor;


--
-- Name: TABLE rebuild_jobs; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.rebuild_jobs TO everturn_fleet;
GRANT SELECT ON TABLE audit.rebuild_jobs TO everturn_auditor;


--
-- Name: TABLE refusals; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.refusals TO everturn_auditor;
GRANT SELECT ON TABLE audit.refusals TO everturn_fleet;


--
-- Name: TABLE revisions; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT,INSERT ON TABLE public.revisions TO everturn_service;


--
-- Name: TABLE revisions; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.revisions TO everturn_fleet;
GRANT SELECT ON TABLE audit.revisions TO everturn_auditor;


--
-- Name: TABLE rollout_turns; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.rollout_turns TO everturn_fleet;
GRANT SELECT ON TABLE audit.rollout_turns TO everturn_auditor;


--
-- Name: TABLE rollouts; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.rollouts TO everturn_fleet;
GRANT SELECT ON TABLE audit.rollouts TO everturn_auditor;


--
-- Name: TABLE tenant_policies; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.tenant_policies TO everturn_fleet;
GRANT SELECT ON TABLE audit.tenant_policies TO everturn_auditor;


--
-- Name: TABLE artifacts; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.artifacts TO everturn_service;


--
-- Name: TABLE tenants; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT ON TABLE public.tenants TO everturn_service;
GRANT INSERT ON TABLE public.tenants TO everturn_fleet;


--
-- Name: COLUMN tenants.on_upgrade; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT UPDATE(on_upgrade) ON TABLE public.tenants TO everturn_fleet;


--
-- Name: TABLE tenant_storage; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.tenant_storage TO everturn_fleet;
GRANT SELECT ON TABLE audit.tenant_storage TO everturn_auditor;


--
-- Name: TABLE tenant_limits; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT ON TABLE public.tenant_limits TO everturn_service;
GRANT INSERT,UPDATE ON TABLE public.tenant_limits TO everturn_fleet;


--
-- Name: TABLE tenant_retention; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.tenant_retention TO everturn_fleet;


--
-- Name: TABLE tenants; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.tenants TO everturn_fleet;
GRANT SELECT ON TABLE audit.tenants TO everturn_auditor;


--
-- Name: TABLE turns; Type: ACL; Schema: audit; Owner: everturn_owner
--

GRANT SELECT ON TABLE audit.turns TO everturn_fleet;
GRANT SELECT ON TABLE audit.turns TO everturn_auditor;


--
-- Name: TABLE aliases; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT,INSERT,UPDATE ON TABLE public.aliases TO everturn_service;


--
-- Name: TABLE contracts; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT ON TABLE public.contracts TO everturn_service;
GRANT INSERT ON TABLE public.contracts TO everturn_fleet;


--
-- Name: COLUMN contracts.revoked_at; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT UPDATE(revoked_at) ON TABLE public.contracts TO everturn_fleet;


--
-- Name: TABLE engine_adapters; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT ON TABLE public.engine_adapters TO everturn_service;
GRANT INSERT,DELETE,UPDATE ON TABLE public.engine_adapters TO everturn_fleet;


--
-- Name: TABLE turns; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT,INSERT,UPDATE ON TABLE public.turns TO everturn_service;


--
-- Name: TABLE engine_load; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT ON TABLE public.engine_load TO everturn_service;


--
-- Name: TABLE engines; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE public.engines TO everturn_service;


--
-- Name: TABLE everturn_schema; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT ON TABLE public.everturn_schema TO everturn_service;


--
-- Name: TABLE rollout_warmups; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT,INSERT,UPDATE ON TABLE public.rollout_warmups TO everturn_fleet;


--
-- Name: TABLE rollouts; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT ON TABLE public.rollouts TO everturn_service;
GRANT INSERT,UPDATE ON TABLE public.rollouts TO everturn_fleet;


--
-- Name: TABLE turn_chunks; Type: ACL; Schema: public; Owner: everturn_owner
--

GRANT SELECT,INSERT,DELETE ON TABLE public.turn_chunks TO everturn_service;


--
-- PostgreSQL database dump complete
--
