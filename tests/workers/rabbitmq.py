"""A RabbitMQ of a test's own, from the binaries of the Debian package; it leaves nothing behind."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from kombu import Connection

from stack.ports import find_free_port

SCRIPTS = Path("/usr/lib/rabbitmq/bin")
"""Not those in /usr/sbin, which run the server of the whole machine under an account of its own."""
START_S = 120.0
STOP_S = 30.0


def is_installed() -> bool:
    return (SCRIPTS / "rabbitmq-server").is_file() and shutil.which("erl") is not None


class RabbitMQ:
    """Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = find_free_port()
        self._node = f"everturn-{self._port}@localhost"
        self._environment = self._settings(find_free_port(), find_free_port())
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        (self._folder / "log").mkdir(parents=True)
        (self._folder / "rabbitmq.conf").write_text("loopback_users = none\n")
        # It would enable those of the machine's own server.
        (self._folder / "plugins").write_text("[].\n")
        with (self._folder / "out").open("wb") as out:
            self._process = subprocess.Popen(
                [str(SCRIPTS / "rabbitmq-server")],
                env=self._environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            self._wait_until_up()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self._port}//"

    def queues(self) -> dict[str, str]:
        """Their types by their names."""
        listed = self._control("list_queues", "name", "type", "--quiet", "--no-table-headers")
        return dict(line.split("\t") for line in listed.splitlines())

    def _control(self, *arguments: str) -> str:
        command = [str(SCRIPTS / "rabbitmqctl"), "--node", self._node, *arguments]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def _settings(self, mapper: int, distribution: int) -> Mapping[str, str]:
        folder = self._folder
        return dict(os.environ) | {
            "HOME": str(folder),  # the node's cookie
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2",
        }

    def _wait_until_up(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError), Connection(self.url, connect_timeout=2) as connection:
                connection.connect()
                return
            time.sleep(0.2)
        raise AssertionError(f"RabbitMQ did not come up:\n{(self._folder / 'out').read_text()[-3000:]}")

    def _stop(self) -> None:
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        # Erlang's port mapper goes on by itself.
        subprocess.run(["epmd", "-kill"], env=self._environment, capture_output=True, check=False)
        self._process = None
