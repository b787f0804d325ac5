"""Stacks to be killed: forked from one process that has everything imported, on servers of their own."""

from __future__ import annotations

import os
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.deployment.forks import ForkServer
from tests.forks import start_forks

from .stack import MakeStack, Stack

#: Settings with which what died is noticed soon.
QUICK = {"lease_s": "0.9", "heartbeat_s": "0.2", "sweep_interval_s": "0.15"}
#: Of a kind of kills, so many are in `make test`; `make chaos` tries all.
KILLS_OF_A_KIND = 10
#: Whether a test failed.
FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    if not sys.platform.startswith("linux"):
        pytest.skip("forks services from a process that has imported them, which is safe on Linux")
    forks = start_forks()
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def model_forks() -> Iterator[ForkServer]:
    """One that has imported what agents that are models need."""
    models = ("orchestrator.worker.executors.llm", "pydantic_ai.models.anthropic")
    forks = start_forks(*models)
    yield forks
    forks.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave ten kills of each kind, others in each run: the seed that is printed decides which; and nothing that is long."""
    if os.environ.get("CHAOS") == "long":
        return
    kinds: dict[str, list[pytest.Item]] = defaultdict(list)
    left_out = {item for item in items if item.get_closest_marker("long")}
    for item in items:
        if kills := item.get_closest_marker("kills"):
            kinds[kills.args[0]].append(item)
    dice = random.Random(config.getoption("randomly_seed", 0))
    for _, kind in sorted(kinds.items()):
        kind.sort(key=lambda item: item.nodeid)
        left_out.update(dice.sample(kind, max(0, len(kind) - KILLS_OF_A_KIND)))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


class SharedStack:
    """One stack for many tests, each of which kills a part of it; another one after a test that failed."""

    def __init__(self, forks: ForkServer, folders: pytest.TempPathFactory) -> None:
        self._forks = forks
        self._folders = folders
        self._leaving = ExitStack()
        self._stack: Stack | None = None

    def get(self) -> Stack:
        """The stack; all of it runs."""
        if self._stack is None:
            socket_dir = make_socket_dir()
            self._leaving.callback(remove_socket_dir, socket_dir)
            folder = self._folders.mktemp("shared")
            server = self._leaving.enter_context(ValkeyProcess(folder / "valkey", socket_dir))
            self._stack = self._leaving.enter_context(Stack(self._forks, server, folder / "stack", QUICK))
            self._stack.start_all()
        return self._stack

    def close(self) -> None:
        """End it, if there is one."""
        self._stack = None
        self._leaving.close()
        self._leaving = ExitStack()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(scope="module")
def shared(forks: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStack]:
    shared = SharedStack(forks, tmp_path_factory)
    yield shared
    shared.close()


@pytest.fixture
def stack(shared: SharedStack, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack that runs, with what other tests left in its ledger."""
    yield shared.get()
    if request.node.stash.get(FAILED, False):
        shared.close()


@pytest.fixture
def make_stack(
    forks: ForkServer, start_valkey: Callable[..., ValkeyProcess], tmp_path: Path
) -> Iterator[MakeStack]:
    """Make stacks whose settings differ from the usual ones as told."""
    with ExitStack() as leaving:

        def make(**settings: str) -> Stack:
            server = start_valkey(durable=True)
            return leaving.enter_context(Stack(forks, server, tmp_path / f"stack-{server.pid}", settings))

        yield make
