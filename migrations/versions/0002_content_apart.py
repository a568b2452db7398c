"""Content apart from the events that commit to it, a hash chain for each stream, and the order that readers follow.

Expand, backfill and contract in one: no release has written the columns that go. From the first release on, the
columns would stay for one more version, and a later migration would take them away.
"""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"

CONTENTS = """
CREATE TABLE event_contents (
    tenant_id text,
    stream text,
    stream_version bigint,
    salt bytea NOT NULL,
    content bytea,
    tokens bytea,
    CONSTRAINT pk_event_contents PRIMARY KEY (tenant_id, stream, stream_version),
    CONSTRAINT ck_event_contents_salt CHECK (octet_length(salt) = 16),
    CONSTRAINT ck_event_contents_parts CHECK (content IS NOT NULL OR tokens IS NOT NULL),
    CONSTRAINT ck_event_contents_tokens CHECK (octet_length(tokens) % 4 = 0)
);
ALTER TABLE events ADD COLUMN commitment bytea, ADD COLUMN chain bytea;
"""

# A UUID of version 4 holds 122 random bits: as good a salt as 16 random bytes, and built in.
BACKFILL = """
ALTER TABLE events DISABLE TRIGGER append_only;
INSERT INTO event_contents (tenant_id, stream, stream_version, salt, content, tokens)
SELECT tenant_id, stream, stream_version, uuid_send(gen_random_uuid()), content, tokens
FROM events WHERE content IS NOT NULL OR tokens IS NOT NULL;
UPDATE events SET commitment = audit.content_commitment(kept.salt, kept.content, kept.tokens)
FROM event_contents AS kept
WHERE (kept.tenant_id, kept.stream, kept.stream_version)
    = (events.tenant_id, events.stream, events.stream_version);
UPDATE events SET chain = computed.chain
FROM (
    SELECT position, audit.chained('\\x'::bytea, audit.event_digest(
        tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, commitment
    )) OVER (PARTITION BY tenant_id, stream ORDER BY stream_version) AS chain
    FROM events
) AS computed
WHERE computed.position = events.position;
ALTER TABLE events ENABLE ALWAYS TRIGGER append_only;
"""

# What squawk warns of is meant: nothing serves on this schema yet, and the table is locked for the backfill anyway.
CONTRACT = """
ALTER TABLE events
    -- squawk-ignore ban-drop-constraint
    DROP CONSTRAINT ck_events_tokens_of_turn,
    -- squawk-ignore ban-drop-constraint
    DROP CONSTRAINT ck_events_tokens,
    -- squawk-ignore ban-drop-column
    DROP COLUMN content,
    -- squawk-ignore ban-drop-column
    DROP COLUMN tokens,
    -- squawk-ignore adding-not-nullable-field
    ALTER COLUMN chain SET NOT NULL,
    -- squawk-ignore constraint-missing-not-valid
    ADD CONSTRAINT ck_events_chain CHECK (octet_length(chain) = 32),
    -- squawk-ignore constraint-missing-not-valid
    ADD CONSTRAINT ck_events_commitment CHECK (octet_length(commitment) = 32),
    -- squawk-ignore constraint-missing-not-valid
    ADD CONSTRAINT ck_events_committed CHECK (
        type NOT IN ('message.accepted', 'turn.completed', 'attempt.failed') OR commitment IS NOT NULL
    );
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_events_feed ON events (txid, position);
-- squawk-ignore require-concurrent-index-creation
CREATE UNIQUE INDEX uq_events_erased ON events (tenant_id, stream) WHERE type = 'conversation.erased';
"""

# The transition table is seen only after the statement; what is refused then is undone with it.
ERASED_ONLY_WITH_A_TOMBSTONE = """
CREATE FUNCTION refuse_erasure_without_tombstone() RETURNS trigger LANGUAGE plpgsql SET search_path = '' AS $$
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
REVOKE ALL ON FUNCTION refuse_erasure_without_tombstone() FROM PUBLIC;
CREATE TRIGGER erased_only_with_a_tombstone AFTER DELETE ON event_contents
    REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_erasure_without_tombstone();
ALTER TABLE event_contents ENABLE ALWAYS TRIGGER erased_only_with_a_tombstone;
CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON event_contents
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
ALTER TABLE event_contents ENABLE ALWAYS TRIGGER append_only;
"""

PRIVILEGES = """
GRANT INSERT (commitment, chain) ON events TO everturn_service;
GRANT SELECT, INSERT, DELETE ON event_contents TO everturn_service;
GRANT SELECT ON ALL TABLES IN SCHEMA audit TO everturn_service, everturn_auditor;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA audit FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA audit TO everturn_service, everturn_auditor;
"""


def upgrade() -> None:
    before = ("content_commitment_v1", "event_digest_v1", "chain_link_v1", "chained_v1", "turn_tokens_v2")
    for sql in (
        CONTENTS,
        *map(view, before),
        BACKFILL,
        CONTRACT,
        ERASED_ONLY_WITH_A_TOMBSTONE,
        view("chain_breaks_v1"),
        PRIVILEGES,
    ):
        op.execute(sql.strip().removesuffix(";"))


def view(name: str) -> str:
    return (VIEWS / f"{name}.sql").read_text()


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
