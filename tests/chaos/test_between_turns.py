"""Everything that serves a conversation dies between two turns: both ways of going on find it, and its history is in the prompt."""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.chaos.client import connect
from tests.chaos.rig import PATIENT, Rig, rebuilding_rig
from tests.engines.simulated import SimulatedEngine
from tests.workers.celery_worker import has_ended, until


@pytest.fixture(scope="module")
def whole(chaos_folder: Path) -> Iterator[Rig]:
    folder = chaos_folder / "whole"
    folder.mkdir(mode=0o711)
    with rebuilding_rig(folder, **PATIENT) as made:
        yield made


def kill_all(rig: Rig) -> None:
    """PostgreSQL, the API, the worker with its pool, and the engine that answered."""
    assert rig.worker is not None
    of_worker = [rig.worker.pid, *rig.worker.children()]
    rig.worker.signal_tree(signal.SIGKILL)
    rig.kill_postgres()
    rig.kill_api()
    rig.engine.kill()
    until(lambda: all(has_ended(pid) for pid in of_worker), "the worker is dead")
    rig.worker.close()


def admin(rig: Rig, method: str, path: str, body: object) -> None:
    headers = {"authorization": f"Bearer {rig.secrets.operator}"}
    httpx.request(method, f"{rig.url}/admin{path}", json=body, headers=headers).raise_for_status()


def register(rig: Rig, engine: SimulatedEngine) -> None:
    body = {"boot": engine.boot, "address": engine.address, "descriptor": engine.descriptor.to_json()}
    admin(rig, "POST", "/engines", body | {"role": "both"})


def test_c8_a_conversation_and_a_response_are_gone_on_with_after_all_processes_were_killed(
    whole: Rig,
) -> None:
    client = connect(whole.url, whole.secrets.tenant)
    chat = client.conversations.create().id
    first = client.responses.create(model="production", conversation=chat, input="one")
    other = client.responses.create(model="production", input="uno")
    client.close()
    kill_all(whole)
    whole.mend()
    assert whole.worker is not None
    whole.worker.start(concurrency=1)
    again = connect(whole.url, whole.secrets.tenant)
    with SimulatedEngine("a", {}) as anew:
        register(whole, anew)
        second = again.responses.create(model="production", conversation=chat, input="two")
        continued = again.responses.create(model="production", previous_response_id=other.id, input="due")
    kept = again.responses.retrieve(first.id)
    # What is left serves v13: the worker that was started anew rebuilds.
    admin(whole, "PUT", "/aliases/production", {"revision": [*whole.engines.values()][1].revision})
    third = again.responses.create(model="production", conversation=chat, input="three")
    items = again.conversations.items.list(chat, order="asc").data
    again.close()
    assert kept.output_text == first.output_text
    said = ["".join(part.text for part in item.content) for item in items]  # type: ignore[union-attr]
    assert said == ["one", first.output_text, "two", second.output_text, "three", third.output_text]
    for answer, begun in ((second, first), (continued, other), (third, second)):
        assert answer.status == "completed"
        assert answer.usage is not None
        assert begun.usage is not None
        assert answer.usage.input_tokens > begun.usage.total_tokens
    assert third.model_extra is not None
    assert third.model_extra["kv"]["source"] == "rebuilt"
