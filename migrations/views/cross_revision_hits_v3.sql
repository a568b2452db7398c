-- Turns that were answered from KV of another revision than the engine's. Must stay empty.
-- The first condition is a part of the second: with it, turns that loaded nothing are left out before anything is joined.
CREATE OR REPLACE VIEW audit.cross_revision_hits AS
SELECT
    tenant_id,
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
    position
FROM audit.turn_provenance
WHERE artifact_id IS NOT NULL AND cross_revision;
