"""Puts small faults into a copy of the source, one at a time, and runs the tests that are to notice: ``make mutants``.

With ``--plays N`` the simulator plays so many seeds instead of the tests, blind: no play is made for a fault. The same
seeds pass without it. Those of which the list says that plays notice them have to be noticed; those of which it says
nothing, as nothing runs beside them, are left out.

The faults are in `faults.toml`, each with a name, a file, the text that it takes out, the text that it puts in, the
tests that are to fail then, and, where the file takes part in what runs beside others, that plays notice it or why they
do not. A fault whose text is not in its file exactly once, tests that fail without any fault or cannot be run, and a
fault that no test notices: each of them fails the run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FAULTS: Final = Path(__file__).with_name("faults.toml")
#: What the tests need of the source tree.
PARTS: Final = ("orchestrator", "workers", "schemas", "tests", "docs", "examples", "pyproject.toml")
#: What the processes of a stack do beside each other: plays are to notice faults in it, or the list says why they do not.
PLAYED: Final = (
    *("orchestrator/redisdb/scripts/", "orchestrator/ledger/", "orchestrator/reconciler/"),
    *("orchestrator/worker/execution/", "orchestrator/worker/context/", "orchestrator/streams/"),
    *("orchestrator/notifier/", "orchestrator/router/execution.py"),
)
#: What the list says of a fault that plays notice.
NOTICED: Final = "noticed"
#: A number of plays is no reason.
NO_REASON: Final = re.compile(r"not by [\d,]+ \w+( of (the )?\w+)?")
#: Seconds that tests, and each play beside them, may take; those that hang with a fault have noticed it.
LIMIT_S: Final = 300
PLAY_LIMIT_S: Final = 2
#: Exit codes of pytest.
PASSED, FAILED = 0, 1


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One small fault."""

    name: str
    file: str  #: relative to the root of the source tree
    old: str
    new: str
    tests: list[str]  #: files, folders or ids of tests, as pytest takes them
    plays: str = ""  #: `noticed`, or why plays do not notice it; empty where nothing runs beside it


class Unusable(Exception):
    """The list of faults, or the tests without any fault, are not as they have to be."""


def load(path: Path = FAULTS) -> list[Fault]:
    """The faults of a file, each of which fits the source as it is.

    Raises:
        Unusable: a name stands twice, or a text is not in its file exactly once.
    """
    faults = [Fault(**fields) for fields in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]]
    names = [fault.name for fault in faults]
    wrong = [
        f"{name}: there are two of that name" for name in sorted({n for n in names if names.count(n) > 1})
    ]
    for fault in faults:
        times = (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old)
        if times != 1:
            wrong.append(f"{fault.name}: {fault.file} has its text {times} times, not once")
        if fault.old == fault.new:
            wrong.append(f"{fault.name}: it changes nothing")
        if fault.file.startswith(PLAYED) and not fault.plays:
            wrong.append(f"{fault.name}: it does not say whether plays notice it, or why not")
        if NO_REASON.fullmatch(fault.plays):
            wrong.append(f"{fault.name}: it says how many plays did not notice it, and not why")
        gone = [test for test in fault.tests if not (ROOT / test.partition("::")[0]).exists()]
        wrong += [f"{fault.name}: there is no {test}" for test in gone]
    if wrong:
        raise Unusable("\n".join(wrong))
    return faults


class Copy:
    """A copy of the source tree in which one fault after the other is tried."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, folder / part)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        # Before the source tree that is installed, and without compiled files, which go by the second.
        self._environment = {**environment, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        found = self._python("-c", "import orchestrator; print(orchestrator.__file__)", limit_s=60)
        if not found.stdout.startswith(str(folder)):
            raise Unusable(f"the copy in {folder} would not be tested, but {found.stdout.strip()}")

    def _python(self, *arguments: str, limit_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def test(self, tests: Sequence[str], *, limit_s: float = LIMIT_S) -> str:
        """Run tests up to the first that fails; what was said of that one, or nothing where all passed.

        Raises:
            Unusable: they could not be run.
        """
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header"]
        try:
            done = self._python("-m", "pytest", *options, *tests, limit_s=limit_s)
        except subprocess.TimeoutExpired:
            return f"they took longer than {limit_s:g} s"
        if done.returncode not in (PASSED, FAILED):
            raise Unusable(f"{' '.join(tests)} could not be run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return "" if done.returncode == PASSED else done.stdout[-3000:]

    def play(self, plays: int) -> str:
        """Play so many seeds, of the ledger and of whole stacks, up to the first that fails; what was said of that one."""
        limit_s = LIMIT_S + plays * PLAY_LIMIT_S
        for what in (["--first", "--ledger"], ["--first"]):
            seeds = f"--seeds=0:{plays}"
            try:
                done = self._python("-m", "tests.simulation.run", *what, seeds, limit_s=limit_s)
            except subprocess.TimeoutExpired:
                return f"they took longer than {limit_s:g} s"
            if done.returncode != 0:
                return f"{what[-1].strip('-')}: {done.stdout or done.stderr[-3000:]}"
        return ""

    def notices(self, fault: Fault, *, plays: int = 0) -> str:
        """What was said where a test or a play fails with a fault; empty: none does."""
        file = self._folder / fault.file
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        try:
            return self.play(plays) if plays else self.test(fault.tests)
        finally:
            file.write_text(text, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the faults; 0: every one was noticed, or, with plays, every one that plays are to notice."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; without any, every fault is tried")
    parser.add_argument(
        "-j", "--jobs", type=int, default=2, help="faults that are tried at once (default: 2)"
    )
    parser.add_argument("--check", action="store_true", help="only see whether every fault fits the source")
    parser.add_argument("--plays", type=int, default=0, help="play so many seeds instead of the tests")
    given = parser.parse_args(arguments)
    try:
        faults = [f for f in load() if not given.names or any(name in f.name for name in given.names)]
        faults = [f for f in faults if f.plays or not given.plays]
        if given.check:
            print(f"{len(faults)} faults fit the source")
            return 0
        lived = try_all(faults, jobs=given.jobs, plays=given.plays)
    except Unusable as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(faults) - len(lived)} of {len(faults)} faults were noticed")
    known = {fault.name: fault.plays for fault in faults if given.plays and fault.plays != NOTICED}
    for name in lived:
        print(f"lived: {name}{f' ({why})' if (why := known.get(name)) else ''}", file=sys.stderr)
    return 1 if any(name not in known for name in lived) else 0


def try_all(faults: Sequence[Fault], *, jobs: int, plays: int = 0) -> list[str]:
    """The names of the faults that no test, or none of so many plays, noticed.

    Raises:
        Unusable: their tests fail without any fault, or cannot be run.
    """
    copies: SimpleQueue[Copy] = SimpleQueue()

    def notices(fault: Fault) -> bool:
        copy = copies.get()
        try:
            said = copy.notices(fault, plays=plays)
        finally:
            copies.put(copy)
        print(
            f"{'noticed' if said else 'LIVED':8} {fault.name}{_which_play(said) if plays else ''}", flush=True
        )
        return said != ""

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for number in range(max(1, jobs)):
            copies.put(Copy(Path(folder) / str(number)))
        tests = sorted({test for fault in faults for test in fault.tests})
        first = copies.get()
        if failure := first.play(plays) if plays else tests and first.test(tests, limit_s=10 * LIMIT_S):
            raise Unusable(f"{failure}\nthe tests fail without any fault; fix that first")
        copies.put(first)
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            verdicts = list(pool.map(notices, faults))
    return [fault.name for fault, noticed in zip(faults, verdicts, strict=True) if not noticed]


def _which_play(said: str) -> str:
    """The line that says which play noticed, in parentheses."""
    return f" ({said.strip().splitlines()[0]})" if said else ""


if __name__ == "__main__":
    sys.exit(main())
