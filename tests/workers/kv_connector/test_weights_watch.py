"""Parameters that change in memory are seen to, whatever their shape, and those that do not are left in peace."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from workers.kv_connector.weights_watch import PLACES, RUN_BYTES, WeightsWatch


class Model(nn.Module):
    """One parameter of every kind that a sample could get wrong."""

    large: nn.Parameter
    halved: nn.Parameter
    with_gaps: nn.Parameter

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(1)
        for name, value in {
            "large": torch.randn(700, 576, generator=random),
            "halved": torch.randn(64, 4096, generator=random).bfloat16(),
            "transposed": torch.randn(300, 200, generator=random).t(),
            "with_gaps": torch.randn(64, 128, generator=random)[:, :100],
            "beside": torch.randn(2, 3000, generator=random)[1],
            "packed": torch.randint(0, 255, (50, 99), dtype=torch.uint8, generator=random),
            "small": torch.randn(7, generator=random),
            "scalar": torch.tensor(1.5),
            "just_larger": torch.zeros(PLACES * RUN_BYTES + 1, dtype=torch.uint8),
            "empty": torch.empty(0),
        }.items():
            self.register_parameter(name, nn.Parameter(value, requires_grad=False))


NAMES = [name for name, value in Model().named_parameters() if value.numel()]


@pytest.fixture(params=["with gaps", "without"])
def model(request: pytest.FixtureRequest) -> Model:
    """Without gaps nothing is copied before it is looked at, and how it is looked at is kept."""
    model = Model()
    if request.param == "without":
        model.with_gaps = nn.Parameter(model.with_gaps.contiguous(), requires_grad=False)
    return model


@pytest.fixture
def watch(model: Model) -> WeightsWatch:
    return WeightsWatch(lambda: [model])


def test_weights_that_stay_are_never_said_to_have_changed(model: Model, watch: WeightsWatch) -> None:
    assert [watch.look() for _ in range(5)] == [0] * 5
    assert model.large.untyped_storage().nbytes() == 700 * 576 * 4


@pytest.mark.parametrize("name", NAMES)
def test_any_parameter_that_changes_as_a_whole_is_seen(model: Model, watch: WeightsWatch, name: str) -> None:
    parameter = getattr(model, name)
    parameter.data.add_(1)
    assert watch.look() == 1
    assert watch.look() == 1
    parameter.data.sub_(1)
    assert watch.look() == 2, "also when it changes back: what was computed meanwhile is of other weights"


@pytest.mark.parametrize("name", ["large", "halved", "transposed", "packed"])
@pytest.mark.parametrize("part", [slice(0, 1), slice(-1, None)], ids=["first tenth", "last tenth"])
def test_a_tenth_of_a_parameter_is_enough(model: Model, watch: WeightsWatch, name: str, part: slice) -> None:
    rows = getattr(model, name).data
    tenth = math.ceil(len(rows) / 10)
    (rows[:tenth] if part.start == 0 else rows[-tenth:]).add_(1)
    assert watch.look() == 1


def test_a_step_too_small_for_most_values_of_half_precision_is_seen(
    model: Model, watch: WeightsWatch
) -> None:
    """As a trainer's last steps are: most values round to what they were."""
    before = model.halved.data.clone()
    step = torch.randn(model.halved.shape, generator=torch.Generator().manual_seed(2)) * 1e-4
    model.halved.data.copy_((before.float() + step).bfloat16())
    changed = (model.halved.data != before).float().mean()
    assert 0 < changed < 0.1
    assert watch.look() == 1


def test_what_lies_between_a_parameters_elements_is_not_its_own() -> None:
    model = Model()
    watch = WeightsWatch(lambda: [model])
    whole = torch.empty(0).set_(model.with_gaps.untyped_storage(), 0, (64, 128), (128, 1))
    whole[:, 100:].add_(1)
    assert watch.look() == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.register_parameter("more", nn.Parameter(torch.zeros(3))),
        lambda model: model.register_parameter("small", None),
        lambda model: setattr(model, "small", nn.Parameter(torch.zeros(8))),
        lambda model: setattr(model, "large", nn.Parameter(torch.zeros(700, 576))),
        lambda model: setattr(model.large, "data", torch.zeros(700, 576)),
    ],
    ids=["one more", "one less", "another size", "another tensor", "other data"],
)
def test_parameters_that_come_go_or_are_replaced_are_seen(
    model: Model, watch: WeightsWatch, change: Callable[[Model], None]
) -> None:
    change(model)
    assert watch.look() == 1


def test_the_same_values_in_another_tensor_are_the_same_weights(model: Model, watch: WeightsWatch) -> None:
    model.large.data = model.large.data.clone()
    assert watch.look() == 0


def test_what_is_packed_anew_is_taken_for_other_weights(model: Model) -> None:
    """VLLM leaves an empty parameter where it has packed a matrix for a CPU; nobody can look into what it packed."""
    layer = nn.Module()
    layer.register_parameter("weight", nn.Parameter(torch.empty(0), requires_grad=False))
    model.add_module("layer", layer)
    layer.cpu_linear = lambda x: x  # type: ignore[assignment]
    watch = WeightsWatch(lambda: [model])
    assert watch.look() == 0
    layer.cpu_linear = lambda x: x  # type: ignore[assignment]
    assert watch.look() == 1
    assert watch.look() == 1


def test_parameters_inside_of_others_are_watched_too(model: Model) -> None:
    inside = {0: torch.ones(9), 1: torch.ones(9)}
    model.large.__dict__["partitions"] = inside
    watch = WeightsWatch(lambda: [model])
    assert watch.look() == 0
    inside[1].add_(1)
    assert watch.look() == 1
    inside[0] = torch.zeros(9)
    assert watch.look() == 2


def test_another_model_in_its_place_is_seen() -> None:
    models = iter(list[Sequence[nn.Module]]([[Model()], [Model()], [nn.Linear(4, 4)]]))
    watch = WeightsWatch(lambda: next(models))
    assert watch.look() == 0
    assert watch.look() == 1


def test_a_glance_looks_again_only_after_a_while(
    model: Model, watch: WeightsWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = watch._looked_at
    monkeypatch.setattr("workers.kv_connector.weights_watch.time.monotonic", lambda: now)
    watch._took_s = 0.001
    model.large.data.add_(1)
    now += 0.019
    assert (watch.glance(), watch.changes) == (0, 0)
    now += 0.002
    assert (watch.glance(), watch.changes) == (1, 1)
    model.large.data.add_(1)
    watch._took_s = 0.001
    assert watch.glance() == 1
    assert watch.look() == 2
