-- What each revision stands for. `weights` is the digest of every shard's bytes; `descriptor` has all that the digest covers.
CREATE VIEW audit.revisions AS
SELECT
    revision,
    label,
    registered_at,
    descriptor #>> '{kv,weights}' AS weights,
    descriptor #>> '{kv,adapter}' AS adapter,
    descriptor #>> '{kv,quantization}' AS quantization,
    descriptor #>> '{kv,compute_dtype}' AS compute_dtype,
    descriptor #>> '{kv,attention_backend}' AS attention_backend,
    descriptor #>> '{kv,engine}' AS engine,
    descriptor #>> '{kv,engine_version}' AS engine_version,
    descriptor #>> '{text,tokenizer}' AS tokenizer,
    descriptor #>> '{text,chat_template}' AS chat_template,
    descriptor
FROM public.revisions;
