"""Databases with an engine in the fleet, launchers and workers; all ended with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Engine

from service.domain.artifact import BootId
from service.store.connection import make_engine
from stack.ports import find_free_port
from stack.valkey import EmbeddedValkey
from tests.workers.celery_worker import CeleryWorker
from tests.workers.fake_api import FakeApi, serving
from tests.workers.launched import Launched
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.prefill_engine import serving as serving_prefills
from tests.workers.shards import write_checkpoint
from tests.workers.waiting import register

NewWorker = Callable[[], CeleryWorker]
FAKE_VLLM = Path(__file__).with_name("fake_vllm.py")


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving(find_free_port()) as api:
        yield api


@pytest.fixture
def launched(tmp_path: Path, api: FakeApi) -> Iterator[Launched]:
    package = tmp_path / "packages/vllm/entrypoints/openai"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "api_server.py").write_text(FAKE_VLLM.read_text())
    write_checkpoint(tmp_path / "model")
    (tmp_path / "key").write_text("engine-key\n")
    launched = Launched(folder=tmp_path, port=find_free_port(), api_url=api.url)
    yield launched
    if launched.process is not None:
        launched.process.kill()
        launched.process.communicate()


@pytest.fixture
def store(database: str) -> Iterator[Engine]:
    """As the service sees it."""
    made = make_engine(database, application_name="tests")
    yield made
    made.dispose()


@pytest.fixture
def prefiller(store: Engine) -> Iterator[PrefillEngine]:
    """A registered engine of v13."""
    with serving_prefills(PrefillEngine(boot=BootId("boot_a"))) as engine:
        register(store, engine)
        yield engine


@pytest.fixture
def broker(server_folder: Path) -> Iterator[EmbeddedValkey]:
    """A broker of this test's own, which it may stop, empty and start again."""
    with EmbeddedValkey(server_folder / f"valkey-{uuid4().hex[:8]}") as server:
        yield server


@pytest.fixture
def new_worker(database: str, broker: EmbeddedValkey, tmp_path: Path) -> Iterator[NewWorker]:
    made: list[CeleryWorker] = []

    def new() -> CeleryWorker:
        log = tmp_path / f"worker{len(made)}.log"
        made.append(CeleryWorker(database_url=database, broker_url=broker.url(), log=log))
        return made[-1]

    yield new
    for worker in made:
        worker.close()


@pytest.fixture
def worker(new_worker: NewWorker) -> CeleryWorker:
    worker = new_worker()
    worker.start()
    return worker
