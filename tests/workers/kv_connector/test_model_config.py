"""What of a model's configuration is identity: everything, but for what is known to change no KV; and what of it is position."""

import pytest

from workers.kv_connector.model_config import architecture_of, depends_on_length, position_of

CONFIG = {
    "hidden_size": 576,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0},
    "sliding_window": 4096,
    "use_sliding_window": True,
    "max_window_layers": 12,
    "partial_rotary_factor": 0.5,
    "layer_types": ["full_attention", "sliding_attention"],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sliding_window", 1024),
        ("use_sliding_window", False),
        ("max_window_layers", 11),
        ("partial_rotary_factor", 1.0),
        ("rope_theta", 1.0),
    ],
)
def test_what_decides_where_a_token_stands_and_what_it_sees_is_position(field: str, value: object) -> None:
    other = CONFIG | {field: value}
    assert position_of(other) != position_of(CONFIG)
    assert position_of(other)[field] == value
    assert architecture_of(other) == architecture_of(CONFIG)


@pytest.mark.parametrize(
    ("field", "value"),
    [("hidden_size", 1), ("layer_types", ["full_attention"] * 2), ("a_field_of_a_new_model", None)],
)
def test_every_other_field_is_architecture_also_one_that_nobody_knows_yet(field: str, value: object) -> None:
    assert architecture_of(CONFIG | {field: value}) != architecture_of(CONFIG)


@pytest.mark.parametrize("noise", ["transformers_version", "use_cache", "dtype", "_name_or_path"])
def test_what_is_known_to_change_no_kv_or_is_measured_elsewhere_is_neither(noise: str) -> None:
    assert architecture_of(CONFIG | {noise: "other"}) == architecture_of(CONFIG)
    assert position_of(CONFIG | {noise: "other"}) == position_of(CONFIG)


@pytest.mark.parametrize(
    ("kind", "depends"),
    [
        *(("default", False), ("linear", False), ("yarn", False), ("llama3", False)),
        *(("dynamic", True), ("longrope", True), ("one of tomorrow", True)),
    ],
)
def test_the_served_length_counts_unless_a_kind_of_rope_is_known_not_to_depend_on_it(
    kind: str, *, depends: bool
) -> None:
    position = position_of(CONFIG | {"rope_parameters": {"rope_type": kind}})
    assert depends_on_length(position) is depends
