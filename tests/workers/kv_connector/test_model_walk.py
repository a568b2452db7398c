"""One walk over a model's modules serves for as long as another one would find the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from workers.kv_connector.model_walk import ModelWalk


def weight() -> nn.Parameter:
    return nn.Parameter(torch.ones(3), requires_grad=False)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.third = weight()


class Layer(nn.Module):
    first: Any

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = weight(), weight()
        self.inner: nn.Module = Inner()
        self.cpu_linear = lambda x: x


class Model(nn.Module):
    layers: Any

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])


def rename(module: nn.Module) -> None:
    module.register_parameter("other", module._parameters.pop("second"))


def move_inside(layer: nn.Module) -> None:
    """To a module that is walked over next, so that the order stays."""
    moved = layer._parameters.pop("second")
    inner = layer.inner
    inner.__dict__["_parameters"] = {"second": moved, **inner.__dict__["_parameters"]}


CHANGES: dict[str, Callable[[Layer], Any]] = {
    "one more": lambda layer: layer.inner.register_parameter("more", weight()),
    "one less": lambda layer: delattr(layer, "second"),
    "none in its place": lambda layer: layer.register_parameter("second", None),
    "another one": lambda layer: setattr(layer, "second", weight()),
    "another name": rename,
    "another place": move_inside,
    "all others": lambda layer: layer.__dict__.update(_parameters={"first": weight(), "second": weight()}),
    "another module": lambda layer: setattr(layer, "inner", Layer()),
    "a module more": lambda layer: layer.inner.add_module("more", Layer()),
    "packed anew": lambda layer: setattr(layer, "cpu_linear", lambda x: x),
}


def test_it_stands_while_nothing_is_changed() -> None:
    model = Model()
    walk = ModelWalk([model])
    assert walk.stands([model])
    assert walk.names[:3] == ("layers.0.first", "layers.0.second", "layers.0.inner.third")
    assert [tensor is found for tensor, found in zip(walk.tensors, model.parameters(), strict=True)] == [
        True
    ] * 6
    assert walk.stands([model])


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_it_falls_with_any_change_of_what_a_module_holds(change: Callable[[Layer], Any]) -> None:
    model = Model()
    walk = ModelWalk([model])
    change(model.layers[1])
    assert not walk.stands([model])
    assert ModelWalk([model]).stands([model])


def test_what_vllm_packed_is_told_apart_from_what_it_packs_anew() -> None:
    model = Model()
    before = ModelWalk([model]).packed
    assert ModelWalk([model]).packed == before
    assert len(before) == 2
    model.layers[0].cpu_linear = lambda x: x
    assert ModelWalk([model]).packed != before


def test_it_is_of_these_models_alone() -> None:
    model, draft = Model(), Model()
    walk = ModelWalk([model])
    assert not walk.stands([Model()])
    assert not walk.stands([model, draft])
    assert not walk.stands([])
    assert not ModelWalk([]).stands([model])


def test_other_memory_or_another_shape_shows_in_its_whereabouts() -> None:
    model = Model()
    walk = ModelWalk([model])
    before = walk.whereabouts()
    assert walk.whereabouts() == before
    kept = model.layers[0].first.data
    model.layers[0].first.data = kept.clone()
    moved = walk.whereabouts()
    assert moved != before
    model.layers[0].first.data = kept[:2]
    shorter = walk.whereabouts()
    assert shorter[0] == before[0]
    assert shorter != before
    assert walk.stands([model]), "it is the same parameter all the while"


def test_tensors_inside_of_others_are_looked_for_each_time() -> None:
    """They may be exchanged, and no module shows it."""
    model, inside = Model(), [torch.ones(2), torch.zeros(2)]
    model.layers[0].first.partitions = {0: inside[0], 1: inside[1]}
    walk = ModelWalk([model])
    assert walk.names[:2] == ("layers.0.first.0", "layers.0.first.1")
    assert (walk.tensors[0] is inside[0], walk.tensors[1] is inside[1]) == (True, True)
    assert not walk.stands([model])


class ChangedAmid(Model):
    """Somebody changes it as soon as its modules, or their parameters, were listed for the first time."""

    def __init__(self, *, after: str) -> None:
        super().__init__()
        self.after = after

    def modules(self, *args: Any, **kwargs: Any) -> Any:
        return self._listed("modules", super().modules(*args, **kwargs))

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return self._listed("parameters", super().named_parameters(*args, **kwargs))

    def _listed(self, what: str, found: Any) -> Any:
        listed = list(found)
        if what == self.after:
            self.after = ""
            self.layers[0] = Layer()
        return iter(listed)


@pytest.mark.parametrize("after", ["modules", "parameters"])
def test_a_walk_while_somebody_changes_modules_serves_once(after: str) -> None:
    model = ChangedAmid(after=after)
    walk = ModelWalk([model])
    assert model.after == "", "it was changed"
    assert not walk.stands([model])
    assert ModelWalk([model]).stands([model])


def test_parameters_that_watch_who_asks_them_are_not_asked_in_torchs_way() -> None:
    asked = []

    class Watched(nn.Parameter):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    model = Model()
    model.layers[0].first = Watched(torch.ones(3), requires_grad=False)
    walk = ModelWalk([model])
    asked.clear()
    walk.whereabouts()
    assert not asked
