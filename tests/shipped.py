"""A server with the configuration and the users that `deploy/make-secrets` makes, but for its address and its paths."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

from orchestrator.errors import OrchestraError, ServerUnavailable
from orchestrator.redisdb.client import connect
from tests.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
#: The parts of a stack that have a Redis user each.
PARTS = ("router", "callbacks", "reaper", "audit", "notifier", "worker", "flower", "operator", "console")


def make_secrets(folder: Path, *arguments: str) -> Path:
    """Run the script."""
    script = ROOT / "deploy" / "make-secrets"
    subprocess.run(["/bin/sh", script, *arguments, folder], check=True, capture_output=True)
    return folder


class ShippedServer:
    """Runs on loopback; may be killed and started again."""

    def __init__(self, program: str | Path, secrets: Path, folder: Path) -> None:
        self._program, self._secrets, self._folder = program, secrets, folder
        self.port = free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and return when it answers."""
        config = (self._secrets / "valkey.conf").read_text()
        tls = "tls-port" in config
        for old, new in (
            ("/run/secrets", str(self._secrets)),
            ("dir /data", f"dir {self._folder}"),
            ("bind * -::*", "bind 127.0.0.1"),
            ("tls-port 6379", f"tls-port {self.port}"),
        ):
            config = config.replace(old, new)
        (self._folder / "valkey.conf").write_text(config if tls else f"{config}port {self.port}\n")
        with (self._folder / "valkey.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, self._folder / "valkey.conf"], stdout=log, stderr=log
            )
        wait_until(self._answers, "the server")

    def _answers(self) -> bool:
        try:
            connect(self.url("operator"), ledger=False).close()
        except ServerUnavailable:
            return False
        except OrchestraError as error:
            return "loading" not in str(error)
        return True

    def kill(self) -> None:
        """End it as a crash would; idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def url(self, part: str) -> str:
        """What the settings of a part of the stack name, as seen from here."""
        settings = tomllib.loads((self._secrets / f"{part}.toml").read_text())
        url: str = settings["orchestra"]["redis_url"]
        assert f"://{part}:" in url
        return url.replace("valkey:6379", f"localhost:{self.port}").replace(
            "/run/secrets", str(self._secrets)
        )
