"""One service on one server for all that leaves both in good order, and a client of it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.chaos.client import connect
from tests.chaos.rig import PATIENT, Rig, rig


@pytest.fixture(scope="package")
def chaos_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="everturn-chaos-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="package")
def running(chaos_folder: Path) -> Iterator[Rig]:
    with rig(chaos_folder, **PATIENT) as made:
        yield made


@pytest.fixture
def client(running: Rig) -> Iterator[OpenAI]:
    made = connect(running.url, running.secrets.tenant)
    yield made
    made.close()
