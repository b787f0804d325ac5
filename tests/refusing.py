"""Ways in which a real server answers and takes no writes, each with its way back."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import redis as redis_py

from orchestrator.deployment.embedded.valkey import ValkeyProcess

#: A port of the loopback interface on which nobody listens.
_NOBODY = ("127.0.0.1", "1")


@dataclass(frozen=True)
class Refusal:
    """One way: how to begin and to end it, and the code of the errors meanwhile."""

    code: str
    begin: Callable[[redis_py.Redis, Path], None]
    end: Callable[[redis_py.Redis, Path], None]


def _become_a_replica(client: redis_py.Redis, _: Path) -> None:
    client.replicaof(*_NOBODY)


def _become_a_primary(client: redis_py.Redis, _: Path) -> None:
    client.replicaof("NO", "ONE")


def _fill_the_memory(client: redis_py.Redis, _: Path) -> None:
    client.config_set("maxmemory", 1)


def _make_room(client: redis_py.Redis, _: Path) -> None:
    client.config_set("maxmemory", 0)


def _save(client: redis_py.Redis) -> str:
    """Let the server write a snapshot; how that went."""
    client.bgsave()
    deadline = time.monotonic() + 60
    while (facts := client.info("persistence"))["rdb_bgsave_in_progress"]:
        assert time.monotonic() < deadline, "the snapshot did not end"
        time.sleep(0.01)
    return str(facts["rdb_last_bgsave_status"])


def _spoil_the_snapshot(client: redis_py.Redis, folder: Path) -> None:
    # A folder that is not empty stands where the file is to go; permissions would not stop a root user.
    (folder / "dump.rdb").unlink(missing_ok=True)
    (folder / "dump.rdb").mkdir()
    (folder / "dump.rdb" / "in the way").touch()
    client.config_set("stop-writes-on-bgsave-error", "yes")
    client.config_set("save", "3600 1000000")
    assert _save(client) == "err"


def _let_it_be_written(client: redis_py.Redis, folder: Path) -> None:
    shutil.rmtree(folder / "dump.rdb")
    assert _save(client) == "ok"


REFUSALS = {
    "READONLY": Refusal("READONLY", _become_a_replica, _become_a_primary),
    "OOM": Refusal("OOM", _fill_the_memory, _make_room),
    "MISCONF": Refusal("MISCONF", _spoil_the_snapshot, _let_it_be_written),
}


class Refusing:
    """A server that can be made to refuse. Its clients are not those of the test, so they are refused nothing."""

    def __init__(self, server: ValkeyProcess, code: str) -> None:
        self._folder = server.folder
        self._way = REFUSALS[code]
        self._client = redis_py.Redis.from_url(server.url)

    def begin(self) -> None:
        """Take no more writes."""
        self._way.begin(self._client, self._folder)

    def end(self) -> None:
        """Take writes again."""
        self._way.end(self._client, self._folder)

    def refused(self) -> int:
        """How many commands were refused so far for this reason."""
        counts = self._client.info("errorstats")
        # Before Redis 7 what a script is refused counts as an error of the script.
        old = str(self._client.info("server")["redis_version"]).startswith("6.")
        rows = [f"errorstat_{code}" for code in (self._way.code, *(["ERR"] if old else []))]
        return sum(int(counts[row]["count"]) for row in rows if row in counts)

    def end_after(self, times: int) -> None:
        """Return once so many more commands were refused; writes are taken again then."""
        wanted, deadline = self.refused() + times, time.monotonic() + 60
        while self.refused() < wanted:
            assert time.monotonic() < deadline, "nobody was refused"
            time.sleep(0.005)
        self.end()
