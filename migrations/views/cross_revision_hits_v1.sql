-- Turns that were answered from KV of another revision than the engine's. Must stay empty.
CREATE VIEW audit.cross_revision_hits AS
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
    first_divergence
FROM audit.turn_provenance
WHERE cross_revision;
