"""Finds the models that this process serves, which vLLM does not hand its connectors."""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn
from vllm.v1.worker.worker_base import WorkerBase

from service.domain.errors import InvalidInput


def models_in_memory(vllm_config: Any) -> Callable[[], Sequence[nn.Module]]:
    """The target model and the draft model, as the worker has them at each call.

    Raises:
        InvalidInput: nobody could see the weights change.
    """
    if vllm_config.model_config.enable_sleep_mode:
        raise InvalidInput(
            "An engine that may sleep gives its weights away meanwhile; start it without --enable-sleep-mode.",
            "weights",
        )
    # vLLM hands a connector no worker, and nothing else that leads to the parameters.
    for worker in gc.get_objects():
        if (
            issubclass(type(worker), WorkerBase)
            and worker.vllm_config.model_config is vllm_config.model_config
        ):
            return partial(_models, worker)
    raise InvalidInput("The worker's parameters cannot be found in memory.", "weights")


def _models(worker: Any) -> list[nn.Module]:
    draft = getattr(worker.model_runner, "get_draft_model", lambda: None)()
    return [model for model in (worker.get_model(), draft) if model is not None]
