"""A second host works against the same Redis with the keys of the agents it serves, and makes none of its own."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from orchestrator.agents.definition import define_agent
from orchestrator.agents.loader import load_agents
from orchestrator.errors import KeyringError
from orchestrator.ledger import RunRef, SessionState
from orchestrator.streams import all_streams, stream_key
from orchestrator.worker.container import RuntimeOfProcess
from orchestrator.worker.execution import heartbeat
from tests.kit import Kit


@dataclass
class Hosts:
    """Two data folders, one Redis. `first` has served `boss` since ever; `far` is to run on the second host."""

    first: Kit
    second: Kit

    def out(self, folder: Path) -> list[str]:
        """The options of an export into this folder."""
        (folder / "pass").write_text("open sesame, open\n")
        return ["-o", str(folder / "exported"), "--passphrase-file", str(folder / "pass")]

    def bring(self, folder: Path, *what: str) -> Result:
        """Export on the first host what the arguments say, and import it on the second one."""
        done = self.first.orchestra("keys", "export", *what, *self.out(folder))
        assert done.exit_code == 0, done.output
        exported, *closed = self.out(folder)[1:]
        return self.second.orchestra("keys", "import", exported, *closed)

    def keys(self, kit: Kit) -> set[str]:
        """The agents whose private keys are there."""
        rows = json.loads(kit.orchestra("keys", "list", "--json").stdout)["keys"]
        return {row["agent"] for row in rows if row["private"]}

    def route(self, kit: Kit) -> list[RunRef]:
        """One round of a router on a host; what workers find then."""
        kit.route()
        return [run for run, _ in kit.sent.runs]

    def published(self) -> int:
        return sum(self.first.redis.xlen(stream_key(stream)) for stream in all_streams())


@pytest.fixture
def hosts(kit: Kit, tmp_path: Path) -> Hosts:
    far = Kit.on(kit.redis, kit.beside(data=tmp_path / "second").settings)

    @kit.agent("boss", role="coordinator")
    def boss(ctx: Any) -> str:
        if ctx.cause == "start":
            ctx.delegate("far", "look")
            return "waiting"
        return f"far says {ctx.callbacks[0].result or ctx.callbacks[0].error}"

    def look(ctx: Any) -> str:
        ctx.status(50, "looking")
        return "seen"

    far.catalogue["far"] = define_agent("far", function=look, source="here")
    kit.parts.agents.announce([far.catalogue["far"].record])
    return Hosts(kit, far)


def test_a_host_that_imports_the_keys_of_its_agents_works_for_the_same_stack(
    hosts: Hosts, tmp_path: Path
) -> None:
    """`keys generate` and `export` here, `keys import` there; each router believes what the other host signs."""
    made = hosts.first.orchestra("keys", "generate", "far", "router", "boss", "operator")
    assert made.exit_code == 0
    assert hosts.bring(tmp_path, "far", "router").exit_code == 0
    assert hosts.keys(hosts.second) == {"far", "router"}

    root = hosts.first.submit("boss")
    (start,) = hosts.route(hosts.second)
    assert hosts.first.execute(start) == "idle"
    (start,) = hosts.route(hosts.second)
    assert hosts.second.execute(start) == "finished"
    assert hosts.route(hosts.first) == []
    assert hosts.first.play(root) == "finished"
    assert hosts.first.ledger.result(root) == (SessionState.FINISHED, "far says seen")
    hosts.route(hosts.second)
    assert hosts.first.dead() == []
    # Delegations, status, two answers; the second host made no key for any of it.
    assert hosts.published() == 5
    assert hosts.keys(hosts.second) == {"far", "router"}
    assert not (hosts.second.settings.data / "keys" / "operator.pem").exists()


def test_a_worker_serves_only_agents_whose_keys_are_at_hand(hosts: Hosts, tmp_path: Path) -> None:
    """The bundled agents are left to others; an agent of one's own without its key is a clear error."""
    hosts.first.orchestra("keys", "generate", "far", "router")
    hosts.bring(tmp_path, "far")
    mine = tmp_path / "mine.py"
    mine.write_text("from orchestrator import agent\n\n\n@agent('far')\ndef far(ctx): ...\n")

    def catalogue(kit: Kit) -> set[str]:
        host = kit.beside(agents=(str(mine),), review_roots=(tmp_path,))
        return set(RuntimeOfProcess(host.app, host.settings).load_catalogue())

    assert catalogue(hosts.first) > {"far", "lead"}
    assert catalogue(hosts.second) == {"far"}
    mine.write_text(mine.read_text().replace("far", "near"))
    with pytest.raises(KeyringError, match="orchestra keys export near"):
        catalogue(hosts.second)


def test_a_host_announces_what_the_operator_vouched_for_and_nothing_else(
    hosts: Hosts, tmp_path: Path
) -> None:
    """`keys export --agents` here, `keys import` there; a record that says something else is refused by its worker."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from orchestrator import agent\n\n\n@agent('away', role='coordinator')\ndef away(ctx): ...\n"
    )
    record = load_agents([str(mine)])["away"].record
    hosts.first.orchestra("keys", "generate", "router")
    announce = hosts.second.parts.agents.announce
    with pytest.raises(
        KeyringError,
        match=r"the operator has not signed the record of agent 'away': .*`orchestra keys export away --agents FILE`",
    ):
        announce([record])

    assert hosts.bring(tmp_path, "away", "reaper", "--agents", str(mine)).exit_code == 0
    announce([record])
    assert hosts.first.parts.agents.get("away") == record
    assert hosts.keys(hosts.second) == {"away", "reaper"}
    done = hosts.second.orchestra("keys", "export", "--agents", str(mine), *hosts.out(tmp_path))
    assert done.exit_code == 2
    assert "sign records of agents on the host that has it" in done.output
    with pytest.raises(
        KeyringError, match=r"not what the operator has signed \(it differs in accepts_from, role\)"
    ):
        announce([record.model_copy(update={"role": "orchestrator", "accepts_from": ("far",)})])


def test_a_process_that_is_forked_while_another_thread_builds_builds_its_own(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool replaces a process at any moment; a lock that stays locked would stop its first task for ever."""
    process, me = RuntimeOfProcess(kit.app, kit.settings), os.getpid()
    building, goes_on = threading.Event(), threading.Event()

    def show(_: str, __: float) -> None:
        if os.getpid() == me:
            building.set()
            assert goes_on.wait(60)

    monkeypatch.setattr(heartbeat, "show", show)
    thread = threading.Thread(target=process.get)
    thread.start()
    assert building.wait(60)
    fork = multiprocessing.get_context("fork").Process(target=process.get)
    fork.start()
    fork.join(30)
    fork.kill()  # one that waits for ever
    fork.join()
    goes_on.set()
    thread.join()
    assert fork.exitcode == 0
