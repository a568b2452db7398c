"""What changes the measured revision, and what does not: each by a whole engine, because only it resolves its settings."""

import json
from pathlib import Path

import pytest

from service.domain.revision import Descriptor, differing_fields
from tests.engines.checkpoints import LAYERS, STRIPS_REASONING, TinyModel
from tests.engines.real import EngineHall, RealEngine
from workers.kv_connector.weights import CACHE_FILE, weights_digest

pytestmark = pytest.mark.engine


def descriptor(engine: RealEngine) -> Descriptor:
    return Descriptor.from_json(engine.identity["descriptor"])


@pytest.mark.parametrize(
    ("model", "arguments", "fields"),
    [
        (TinyModel(), ("--dtype", "bfloat16"), {"compute_dtype", "kv_dtype"}),
        (TinyModel(), ("--block-size", "64"), {"block_size"}),
        (
            TinyModel(config={"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}),
            (),
            {"position.rope_parameters.rope_theta"},
        ),
        (
            TinyModel(
                config={"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}
            ),
            (),
            {"position.rope_parameters.rope_type", "position.rope_parameters.factor"},
        ),
        (
            TinyModel(config={"layer_types": ["sliding_attention"] * LAYERS, "sliding_window": 64}),
            (),
            {"position.sliding_window", "kv_layout.spec"},
        ),
        (TinyModel(config={"rms_norm_eps": 1e-6}), (), {"architecture.rms_norm_eps"}),
        (TinyModel(extra_token="<tool>"), (), {"tokenizer"}),
        (TinyModel(chat_template=STRIPS_REASONING), (), {"chat_template", "history_policy"}),
        (
            TinyModel(),
            ("--override-generation-config", '{"temperature": 0.5}'),
            {"generation_defaults.temperature"},
        ),
        (
            TinyModel(),
            (
                "--speculative-config",
                '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}',
            ),
            {"draft_model"},
        ),
    ],
    ids=[
        "dtype",
        "block size",
        "rope base",
        "rope kind",
        "sliding window",
        "norm",
        "tokenizer",
        "template",
        "sampling defaults",
        "draft",
    ],
)
def test_a_setting_that_matters_changes_the_revision_and_names_itself(
    engine_hall: EngineHall,
    v12_engine: RealEngine,
    tmp_path: Path,
    model: TinyModel,
    arguments: tuple[str, ...],
    fields: set[str],
) -> None:
    engine = engine_hall.start(model.write(tmp_path / "model"), v12_engine.store, *arguments)
    differing = differing_fields(descriptor(v12_engine), descriptor(engine))
    assert fields <= set(differing)
    assert "weights" not in differing
    engine_hall.stop(engine)


def test_path_name_length_memory_and_scheduling_do_not_change_the_revision(
    engine_hall: EngineHall, v12_engine: RealEngine, tmp_path: Path
) -> None:
    engine = engine_hall.start(
        TinyModel().write(tmp_path / "elsewhere"),
        v12_engine.store,
        *(
            "--served-model-name",
            "another",
            "--max-model-len",
            "2048",
            "--kv-cache-memory-bytes",
            str(16 << 20),
        ),
        *("--max-num-batched-tokens", "512", "--max-num-seqs", "4"),
    )
    assert engine.revision == v12_engine.revision
    engine_hall.stop(engine)


def test_toggles_that_change_numerics_are_part_of_the_revision_those_of_libraries_too(
    engine_hall: EngineHall, v12_engine: RealEngine, tiny_v12: Path
) -> None:
    env = {"VLLM_CPU_ATTN_SPLIT_KV": "0", "ONEDNN_DEFAULT_FPMATH_MODE": "STRICT"}
    engine = engine_hall.start(tiny_v12, v12_engine.store, env=env)
    differing = differing_fields(descriptor(v12_engine), descriptor(engine))
    assert set(differing) == {f"environment.{name}" for name in env}
    engine_hall.stop(engine)


def test_the_length_is_identity_where_positions_depend_on_it(
    engine_hall: EngineHall, v12_engine: RealEngine, tmp_path: Path
) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = TinyModel(config={"rope_parameters": rope}).write(tmp_path / "model")
    short = engine_hall.start(model, v12_engine.store, "--max-model-len", "1024")
    long = engine_hall.start(model, v12_engine.store, "--max-model-len", "2048")
    assert differing_fields(descriptor(short), descriptor(long)) == ("position.max_model_len",)
    engine_hall.stop(short)
    engine_hall.stop(long)


@pytest.mark.parametrize("paranoid", [False, True])
def test_a_second_start_believes_the_hashes_of_the_first_unless_it_is_paranoid(
    engine_hall: EngineHall, v12_engine: RealEngine, tiny_v12: Path, tmp_path: Path, paranoid: bool
) -> None:
    """The cache lies here: whoever reads no byte of the weights takes over the lie."""
    weights_digest(tiny_v12, tmp_path)
    cache = tmp_path / CACHE_FILE
    cache.write_text(json.dumps(dict.fromkeys(json.loads(cache.read_text()), "0" * 64)))
    ours = {
        "kv_connector": "EverturnConnector",
        "kv_connector_module_path": "workers.kv_connector.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "boot_id": "boot_cached",
            "store": str(tmp_path / "kv"),
            "run_dir": str(tmp_path / "run"),
            "hash_cache": str(tmp_path),
            "paranoid": paranoid,
        },
    }
    env = {"EVERTURN_RUN_DIR": str(tmp_path / "run")}
    engine = engine_hall.start(tiny_v12, tmp_path / "kv", env=env, instead=ours)
    differing = differing_fields(descriptor(v12_engine), descriptor(engine))
    assert differing == (() if paranoid else ("weights",))
    engine_hall.stop(engine)


@pytest.mark.parametrize("before", ["as loaded", "other bytes"])
def test_weights_that_changed_while_they_were_loaded_are_nobodys(
    before: str, engine_hall: EngineHall, tmp_path: Path
) -> None:
    model = TinyModel().write(tmp_path / "model")
    digest = weights_digest(model, tmp_path) if before == "as loaded" else "0" * 64
    engine = engine_hall.start(model, tmp_path / "store", weights=digest)
    answer = engine.http.get(f"{engine.url}/everturn/identity")
    if before == "as loaded":
        assert answer.json()["descriptor"]["kv"]["weights"] == digest
    else:
        assert answer.status_code == 503
        assert "changed while they were loaded" in answer.text
    engine_hall.stop(engine)
