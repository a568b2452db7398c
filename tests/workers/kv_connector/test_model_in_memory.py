"""The models in this process are found, or the engine has no revision."""

import importlib
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from service.domain.errors import InvalidInput

pytestmark = pytest.mark.engine


def configured(*, sleeps: bool = False) -> Any:
    return SimpleNamespace(model_config=SimpleNamespace(enable_sleep_mode=sleeps))


@pytest.fixture(scope="module")
def finder() -> Any:
    with warnings.catch_warnings(action="ignore"):  # of what vLLM's worker imports
        return importlib.import_module("workers.kv_connector.model_in_memory")


def worker(finder: Any, config: Any, *models: nn.Module | None) -> Any:
    class FakeWorker(finder.WorkerBase):  # type: ignore[misc]
        def __init__(self) -> None:
            self.vllm_config = config
            self.models = models
            self.model_runner = SimpleNamespace(get_draft_model=lambda: self.models[1])

        def get_model(self) -> Any:
            return self.models[0]

    return FakeWorker()


def test_they_are_those_of_the_worker_with_the_same_configuration(finder: Any) -> None:
    """Also through a copy of it, as vLLM's MultiConnector hands its connectors."""
    config, target, draft = configured(), nn.Linear(2, 2), nn.Linear(3, 3)
    ours, other = worker(finder, config, target, None), worker(finder, configured(), nn.Linear(4, 4), None)
    find = finder.models_in_memory(SimpleNamespace(model_config=config.model_config))
    assert find() == [target]
    assert other.models[0] is not target
    ours.models = (draft, target)
    assert find() == [draft, target], "as they are when asked"


def test_weights_that_nobody_can_watch_are_not_measured(finder: Any) -> None:
    other = worker(finder, configured(), nn.Linear(2, 2), None)
    with pytest.raises(InvalidInput, match="cannot be found in memory"):
        finder.models_in_memory(configured())
    with pytest.raises(InvalidInput, match="without --enable-sleep-mode"):
        finder.models_in_memory(SimpleNamespace(model_config=configured(sleeps=True).model_config))
    assert other.models
