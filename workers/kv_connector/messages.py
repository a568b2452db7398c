"""The envelopes in which vLLM carries our messages between its scheduler and its workers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from workers.kv_connector.jobs import NO_JOBS, Jobs, Outcomes


@dataclass(frozen=True, slots=True)
class StepJobs(KVConnectorMetadata):  # type: ignore[misc]
    jobs: Jobs
    begins: bool = False
    """Whether a request begins in this step: then the weights it is computed with are looked at."""

    def __reduce__(self) -> tuple[Callable[..., "StepJobs"], tuple[Any, ...]]:
        """Every step is sent one, nearly always without jobs: that is not worth naming their fields."""
        if self.jobs is NO_JOBS:
            return _without_jobs, (self.begins,)
        return StepJobs, (self.jobs, self.begins)


def _without_jobs(begins: bool) -> StepJobs:
    return StepJobs(NO_JOBS, begins)


@dataclass(frozen=True, slots=True)
class StepOutcomes(KVConnectorWorkerMetadata):  # type: ignore[misc]
    outcomes: Outcomes

    def aggregate(self, _other: KVConnectorWorkerMetadata) -> Self:
        """The first rank's: jobs are only ever given to engines of a single rank."""
        return self


@dataclass(frozen=True, slots=True)
class Measurement(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """A rank's measured identity as JSON, or why there is none; the rest is what clients must know to ask it."""

    descriptor: str | None
    tensors: str
    error: str | None
    stop_token_ids: tuple[int, ...]
    watched: bool
    """Whether the rank looks at its weights when asked."""
