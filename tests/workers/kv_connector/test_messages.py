"""What the scheduler side tells the worker side of a step comes through the engine's queue as it was sent."""

import importlib
import pickle
import warnings
from typing import Any

import pytest

from service.domain.artifact import ArtifactId
from workers.kv_connector.jobs import NO_JOBS, Jobs, SaveJob

SAVE = SaveJob(
    request_id="r", attempt="a", tenant="t", artifact=ArtifactId("kv_0123456789"), lease_s=1, blocks=()
)


@pytest.fixture(scope="module")
def messages() -> Any:
    with warnings.catch_warnings(action="ignore"):  # of what vLLM's connectors import
        return importlib.import_module("workers.kv_connector.messages")


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("jobs", [NO_JOBS, Jobs(), Jobs(saves=(SAVE,)), Jobs(lost=("r",))])
def test_a_step_arrives_as_it_was_sent(messages: Any, jobs: Jobs, begins: bool) -> None:
    sent = messages.StepJobs(jobs, begins)
    assert pickle.loads(pickle.dumps(sent, protocol=pickle.HIGHEST_PROTOCOL)) == sent  # noqa: S301 our own bytes


def test_a_step_without_jobs_names_none_of_their_fields(messages: Any) -> None:
    pickled = pickle.dumps(messages.StepJobs(NO_JOBS, begins=True))
    assert not any(name.encode() in pickled for name in Jobs.__slots__)
