"""`everturn up` and its siblings as a user meets them: bad input is one clear line, and nothing is left running or half-written."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stack.background import MARKS
from stack.locks import lock_supervisor
from stack.ports import find_free_port
from tests.stack.supervisors import PATIENCE_S, REPOSITORY, WITH_DEFAULT_SIGINT, Machine, Said
from tests.workers.shards import write_checkpoint


@pytest.fixture
def machine(folder: Path) -> Iterator[Machine]:
    write_checkpoint(folder / "model")
    machine = Machine(data=folder / "data", model=folder / "model")
    yield machine
    machine.say("down")
    assert machine.processes() == []


def test_a_port_in_use_is_named_before_anything_is_written(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = machine.up(port=taken.getsockname()[1])
    assert said.status == 1
    assert "is in use: stop what uses it, or set EVERTURN_PORT to a free port" in said.line
    assert not machine.data.exists()


def test_a_port_that_cannot_be_is_named(machine: Machine) -> None:
    assert "set EVERTURN_PORT to one that is" in machine.up(port=99999).line


def test_a_model_that_is_not_there_is_named_before_anything_is_written(machine: Machine) -> None:
    said = machine.up(model=machine.model / "nope")
    assert said.status == 1
    assert said.line.startswith("everturn: --model (EVERTURN_MODEL): ")
    assert "is not a folder on this machine" in said.line
    assert not machine.data.exists()


def test_a_model_without_safetensors_says_what_is_there_and_the_way_out(machine: Machine) -> None:
    (machine.model / "model.safetensors").rename(machine.model / "model.gguf")
    said = machine.up()
    assert said.status == 1
    assert "has no .safetensors file. It has model.gguf: convert it first" in said.line
    assert not machine.data.exists()


def test_a_data_folder_that_is_no_database_is_left_alone(machine: Machine) -> None:
    data = machine.data / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "notes").write_text("mine")
    said = machine.up()
    assert said.status == 1
    assert "is not a PostgreSQL data directory" in said.line
    assert (data / "notes").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="the cluster belongs to the account that root drops to")
def test_a_postgres_that_does_not_start_says_why_and_the_way_out(
    machine: Machine, cluster_directory: Path
) -> None:
    machine.data.mkdir(mode=0o711)
    cluster_directory.rename(machine.data / "postgres")
    (machine.data / "postgres/data/global/pg_control").write_bytes(b"garbage")
    said = machine.up()
    assert said.status == 1
    assert said.line.startswith("everturn: PostgreSQL ended while starting")
    assert said.line.endswith("is damaged, put a backup in its place or move it away")


def test_a_broker_that_does_not_start_says_why_and_the_way_out(machine: Machine) -> None:
    manifest = machine.data / "valkey/data/appendonlydir/appendonly.aof.manifest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("garbage")
    said = machine.up()
    assert said.status == 1
    assert said.line.startswith("everturn: Valkey ended while starting (exit 1): ")
    assert said.line.endswith("is damaged, put a backup in its place or move it away")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_is_too_small_is_named(machine: Machine) -> None:
    machine.data.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m,mode=711", "tmpfs", str(machine.data)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("this container may not mount")
    try:
        said = machine.up()
        assert said.status == 1
        assert "no disk space" in said.line
        assert not list(machine.data.glob("postgres/data*"))
    finally:
        subprocess.run(["umount", str(machine.data)], check=True)


def test_a_data_folder_that_is_a_file_is_named(machine: Machine) -> None:
    machine.data.write_text("mine")
    for said in (machine.up(), machine.say("clean")):
        assert said.status == 1
        assert str(machine.data) in said.line
    assert machine.data.read_text() == "mine"


def test_clean_deletes_only_what_is_ours(machine: Machine) -> None:
    machine.data.mkdir()
    (machine.data / "thesis").write_text("mine")
    said = machine.say("clean")
    assert said.status == 1
    assert "holds no data of Everturn: nothing was deleted" in said.line
    assert (machine.data / "thesis").exists()


@pytest.mark.parametrize("mark", MARKS)
def test_clean_deletes_what_any_part_has_left(machine: Machine, mark: str) -> None:
    path = machine.data / mark
    path.parent.mkdir(parents=True)
    path.touch()
    assert machine.say("clean").out.endswith(f"deleted {machine.data}\n")
    assert not machine.data.exists()


@contextmanager
def serving(machine: Machine, *, port: int, pid: int) -> Iterator[None]:
    """What a supervisor with that pid leaves on disk while it serves; its lock is held."""
    (machine.data / "run").mkdir(parents=True)
    said = {
        "pid": str(pid),
        "url": f"http://127.0.0.1:{port}",
        "port": str(port),
        "model": str(machine.model),
    }
    (machine.data / "run/ready.json").write_text(json.dumps(said))
    (machine.data / "keys.json").write_text(json.dumps({"tenant_key": "sk-1", "operator_key": "op-1"}))
    lock = lock_supervisor(machine.data / "run")
    yield
    os.close(lock)


def test_a_second_up_shows_the_same_again(machine: Machine) -> None:
    with serving(machine, port=7, pid=os.getpid()):
        said = machine.up(port=7)
        assert said.status == 0
        assert "serves on http://127.0.0.1:7" in said.out
        assert "Bearer sk-1" in said.out
        assert "serves on http://127.0.0.1:7;" in machine.say("status").out


def test_a_second_up_that_asks_for_something_else_is_told_that_it_does_not_get_it(machine: Machine) -> None:
    with serving(machine, port=7, pid=os.getpid()):
        for said in (machine.up(port=8), machine.up(port=7, model=machine.data)):
            assert said.status == 1
            assert f"already serves {machine.model} on http://127.0.0.1:7: `make down` first" in said.line


def test_what_a_killed_supervisor_said_is_not_believed(machine: Machine) -> None:
    with serving(machine, port=7, pid=1):
        assert "is starting" in machine.say("status").out
    (machine.data / "postgres/data").mkdir(parents=True)
    assert "is not a PostgreSQL data directory" in machine.up(port=find_free_port()).line


@pytest.mark.parametrize("command", ["down", "clean", "status"])
def test_where_nothing_runs_that_is_said_as_often_as_asked(machine: Machine, command: str) -> None:
    for _ in range(2):
        assert machine.say(command) == Said(status=0, out=f"nothing runs in {machine.data}\n", err="")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_up_that_is_interrupted_leaves_nothing_running(machine: Machine, number: signal.Signals) -> None:
    command = machine.command("up", "--port", str(find_free_port()), "--model", str(machine.model))
    with subprocess.Popen(
        [*WITH_DEFAULT_SIGINT, *command], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    ) as up:
        deadline = time.monotonic() + PATIENCE_S
        while not (machine.data / "postgres/postgres.log").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        up.send_signal(number)
        _, err = up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 130
    assert err == "everturn: interrupted; nothing runs any more\n"
    assert machine.processes() == []
