"""A RabbitMQ of a test's own: Debian's program on loopback, with its files in a folder of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.ports import free_port

#: Seconds that a start or an end may take; the machine is shared with other tests.
RETRY_FOR_S: Final = 90.0

_CONFIG: Final = """\
listeners.tcp.1 = 127.0.0.1:{port}
log.console = false
log.file.level = warning
"""


def server_program() -> str | None:
    """The server itself: what stands in the PATH on Debian changes the user first."""
    found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    return str(found[-1]) if found else None


def url_of(port: int) -> str:
    """The broker URL of a port on loopback."""
    return f"amqp://guest:guest@127.0.0.1:{port}//"


class RabbitServer:
    """One node, and the port mapper that it needs. Both end with :meth:`close`."""

    def __init__(self, folder: Path, *, program: str, epmd: str) -> None:
        self._program = program
        self._folder = folder
        folder.mkdir(parents=True)
        (folder / "plugins").write_text("[].\n", encoding="utf-8")
        self._port, self._epmd_port, dist = free_port(), free_port(), free_port()
        (folder / "rabbitmq.conf").write_text(_CONFIG.format(port=self._port), encoding="utf-8")
        (folder / "advanced.config").write_text("[].\n", encoding="utf-8")
        mapper = {"ERL_EPMD_PORT": str(self._epmd_port), "ERL_EPMD_ADDRESS": "127.0.0.1"}
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "HOSTNAME": "localhost",
            **mapper,
            "RABBITMQ_NODENAME": f"test{self._port}@localhost",
            "RABBITMQ_DIST_PORT": str(dist),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            # One scheduler; the node itself listens on loopback only.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
        }
        self._mapper = subprocess.Popen(
            [epmd, "-address", "127.0.0.1", "-port", str(self._epmd_port)],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._node: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    @property
    def url(self) -> str:
        """What Celery connects to."""
        return url_of(self._port)

    def start(self) -> None:
        """Start the node, with what it kept; return once it takes connections."""
        with (self._folder / "console.log").open("ab") as console:
            self._node = subprocess.Popen(
                [self._program],
                env=self._env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        deadline = time.monotonic() + RETRY_FOR_S
        while not self._is_listening():
            assert self._node.poll() is None, (self._folder / "console.log").read_text()
            assert time.monotonic() < deadline, (self._folder / "console.log").read_text()
            time.sleep(0.1)

    def _is_listening(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=2) as client:
                # What speaks another version of the protocol is told which one is spoken here.
                client.sendall(b"AMQP\x09\x09\x09\x09")
                return client.recv(4) == b"AMQP"
        except OSError:
            return False

    def kill(self) -> None:
        """End the node at once; what is not on disk is gone."""
        node, self._node = self._node, None
        if node is not None:
            os.killpg(node.pid, 9)
            node.wait()

    def close(self) -> None:
        """End everything."""
        self.kill()
        self._mapper.kill()
        self._mapper.wait()
