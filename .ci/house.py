"""Hold the size and the shape of the source below ceilings that only fall (`make house`).

`.ci/house.toml` keeps a ceiling for each figure. A figure above its ceiling is an error; `--lower` sets each ceiling to
what was reached. Nothing raises one: what has to grow takes the place of something else.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "orchestrator"
CEILINGS = ROOT / ".ci" / "house.toml"
#: Rooms and modules that came after the goals were written, which count them apart: simulation, console, telemetry,
#: transcript.
APART = (
    *("testing/simulation/", "console/", "telemetry/", "transcript/"),
    *(
        "cli/console.py",
        "cli/metrics.py",
        "cli/transcript.py",
        "cli/documents/transcript.py",
        "ledger/gauges.py",
    ),
)
#: The primitives themselves: what uses them makes a format.
PRIMITIVES = "keyring/algorithms.py"
VERBS = ("delegate", "ask", "submit")
RIDDLES = ("What", "Whether", "One", "How", "Where", "Who", "Why")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Figure:
    """A row of the table."""

    name: str
    meaning: str
    goal: float
    advice: str


FIGURES = (
    Figure("code", "code lines of orchestrator", 33_500, "Delete what the change made superfluous."),
    Figure(
        "lua", "lines of Lua", 2_900, "Decide in Python what needs no atomicity; share what two scripts say."
    ),
    Figure("tests", "lines of tests", 34_000, "Add a row to a table of cases instead of a test."),
    Figure("files", "modules of orchestrator", 210, "Put what belongs to one noun into its module."),
    Figure(
        "walk",
        "modules of a prompt, submit to resume",
        60,
        "Do it in a module that the prompt enters anyway.",
    ),
    Figure("plain", "modules of a plain run", 25, "Make it where it is first used, not for each run."),
    Figure("delegate", "places that declare `delegate`", 3, "Derive it from the one declaration."),
    Figure("ask", "places that declare `ask`", 3, "Derive it from the one declaration."),
    Figure("submit", "places that declare `submit`", 3, "Derive it from the one declaration."),
    Figure("repeated", "document fields that repeat another's", 0, "Print the model itself."),
    Figure(
        "signed",
        "modules that sign or MAC",
        3,
        "Use a format that is there; if this one replaces another, name it under `signed-by` in .ci/house.toml.",
    ),
    Figure(
        "wide", "functions of eight parameters and more", 15, "Pass one value that has these as its fields."
    ),
    # Counts, as deleting what is fine raises a share; the goals are shares.
    Figure("riddles", "docstrings that begin with What, Whether …", 0.05, "Begin with a verb: Return the …"),
    Figure("imports", "import lines", 0.064, "Put modules together that import the same."),
    Figure("circles", "circles of imports", 0, "Move what both need below both."),
    Figure("long", "modules over 500 lines", 0, "Take a noun out of it."),
)


class Module:
    """A module of the package: its lines by kind, and its tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.relative_to(PACKAGE).as_posix()
        self.room = self.name.split("/")[0] if "/" in self.name else "(top)"
        self.text = path.read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.tree = ast.parse(self.text)

    @property
    def apart(self) -> str:
        """The room of `APART` that it stands in, or nothing."""
        return next((room for room in APART if self.name.startswith(room)), "")

    @cached_property
    def imports(self) -> set[int]:
        """The lines of imports, `if TYPE_CHECKING:` and `__all__`."""
        found: set[int] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)) or (
                isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
            ):
                found.update(_lines(node))
            elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                found.add(node.lineno)
        return found

    @cached_property
    def code(self) -> int:
        """The lines that are no docstring, comment, import and not blank."""
        apart = set(self.imports)
        for node in ast.walk(self.tree):
            for string in _docstrings(node):
                apart.update(_lines(string))
        return sum(
            1
            for number, line in enumerate(self.lines, 1)
            if number not in apart and line.strip() and not line.strip().startswith("#")
        )


def _lines(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _docstrings(node: ast.AST) -> Iterator[ast.Constant]:
    if not isinstance(node, (ast.Module, ast.ClassDef, *DEFINITIONS)):
        return
    for statement in node.body:
        if (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        ):
            yield statement.value


def _functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, DEFINITIONS))


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    said = function.args
    names = [each.arg for each in (*said.posonlyargs, *said.args, *said.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _fields(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                        yield each.target.id


def signers(modules: Iterable[Module]) -> set[str]:
    """Return the modules that call a key's `sign`, make an HMAC or key a hash."""
    found = set()
    for module in modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if (
                (called.endswith(".sign") and len(node.args) == 1 and not node.keywords)
                or called in ("hmac.new", "hmac.digest")
                or ("blake2" in called and any(each.arg == "key" for each in node.keywords))
            ):
                found.add(module.name)
    return found - {PRIMITIVES}


def circles(modules: Iterable[Module]) -> list[list[str]]:
    """Return the groups of modules that import each other when they are imported."""
    known = {_dotted(module.name): module for module in modules}
    graph = {name: _imported(name, module, known) for name, module in known.items()}
    # Tarjan's strongly connected components.
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            component = sorted(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    sys.setrecursionlimit(10_000)
    for name in graph:
        if name not in index:
            visit(name)
    return found


def _dotted(name: str) -> str:
    return "orchestrator." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(name: str, module: Module, known: dict[str, Module]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                inner = f"{node.module}.{each.name}"
                found.add(inner if inner in known else node.module)
    return {each for each in found if each in known and each != name}


def places(verb: str, modules: Iterable[Module]) -> list[str]:
    """Return the modules and scripts that declare a verb anew: a function, or a script, of its name."""
    found = [
        f"{module.name}:{node.lineno}"
        for module in modules
        for node in _functions(module)
        if node.name == verb
    ]
    return found + [
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.lua") if path.stem == verb
    ]


def walked() -> dict[str, list[str]]:
    """Return the modules that each stage of a prompt enters; of two walks the shorter: on a busy machine timers fire, too."""
    return min(
        _walk(), _walk(), key=lambda stages: (len(set().union(*stages.values())), *map(len, stages.values()))
    )


def _walk() -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "walk.py")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"The walk of a prompt failed: {done.stderr.strip()[-2000:]}")
    stages: dict[str, list[str]] = json.loads(done.stdout)
    return stages


def measure(modules: list[Module]) -> tuple[dict[str, int], dict[str, list[str]], dict[str, int]]:
    """Return each figure, where what it counts stands, and what the shares are shares of."""
    ours = [module for module in modules if not module.apart]
    documents = [module for module in ours if module.name.startswith("cli/documents/")]
    domain = set(_fields(set(ours) - set(documents)))
    docstrings = [
        str(strings[0].value).strip()
        for module in modules
        for node in ast.walk(module.tree)
        if (strings := list(_docstrings(node))[:1])
        and isinstance(node, (ast.Module, ast.ClassDef, *DEFINITIONS))
        and node.body[0].lineno == strings[0].lineno
    ]
    stages = walked()
    where = {
        "walk": sorted(set().union(*stages.values())),
        "plain": stages["the child's run"],
        **{verb: places(verb, ours) for verb in VERBS},
        "repeated": [each for each in _fields(documents) if each in domain],
        "signed": sorted(signers(ours)),
        "wide": [
            f"{module.name}:{node.lineno} {node.name}"
            for module in ours
            for node in _functions(module)
            if _parameters(node) >= 8
        ],
        "circles": [" ".join(circle) for circle in circles(modules)],
        "long": [module.name for module in modules if len(module.lines) > 500],
    }
    now = {name: len(found) for name, found in where.items()}
    now["code"] = sum(module.code for module in ours)
    now["lua"] = _count(
        path for path in PACKAGE.rglob("*.lua") if not any(room in path.as_posix() for room in APART)
    )
    now["tests"] = _count(
        path
        for path in (ROOT / "tests").rglob("*.py")
        if path.parent.name not in ("console", "simulation", "telemetry", "transcript")
    )
    now["files"] = len(ours)
    now["riddles"] = sum(1 for text in docstrings if re.match(rf"({'|'.join(RIDDLES)})\b", text))
    now["imports"] = sum(len(module.imports) for module in ours)
    totals = {"riddles": len(docstrings), "imports": sum(len(module.lines) for module in ours)}
    return now, where, totals


def _count(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def rooms(modules: list[Module]) -> str:
    """Return the code lines of each room, largest first."""
    code: Counter[str] = Counter()
    files: defaultdict[str, int] = defaultdict(int)
    for module in modules:
        room = module.apart.rstrip("/") or module.room
        code[room] += module.code
        files[room] += 1
    rows = [f"{room:20} {lines:7,} {files[room]:5}" for room, lines in code.most_common()]
    return "\n".join([f"{'room':20} {'code':>7} {'files':>5}", *rows, f"{'all':20} {code.total():7,}"])


def table(now: dict[str, int], ceilings: dict[str, int], totals: dict[str, int]) -> str:
    """Return figure, now, ceiling and goal as lines."""
    head = f"{'figure':44} {'now':>8} {'ceiling':>8} {'goal':>8}"
    return "\n".join(
        [
            head,
            *(
                f"{each.meaning:44} {now[each.name]:8,} {ceilings[each.name]:8,} "
                f"{each.goal if each.goal >= 1 else int(each.goal * totals.get(each.name, 0)):8,}"
                for each in FIGURES
            ),
        ]
    )


def lower(now: dict[str, int], found: list[str]) -> None:
    """Set each ceiling to what was reached, if that is lower."""
    text = CEILINGS.read_text(encoding="utf-8")
    kept = tomllib.loads(text)
    for name, ceiling in kept["ceilings"].items():
        reached = min(ceiling, now[name])
        text, times = re.subn(rf"(?m)^{name} = \d+$", f"{name} = {reached}", text)
        if times != 1:
            raise SystemExit(f"{CEILINGS.name} has no line `{name} = NUMBER` of its own: write one.")
    names = "".join(f'  "{name}",\n' for name in sorted(set(found) & set(kept["signed-by"])))
    text = re.sub(r"(?s)^signed-by = \[.*?^\]$", f"signed-by = [\n{names}]", text, flags=re.MULTILINE)
    CEILINGS.write_text(text, encoding="utf-8")


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--lower", action="store_true", help="set each ceiling to what was reached")
    options.add_argument("--rooms", action="store_true", help="print the code lines of each room, too")
    options.add_argument("--where", metavar="FIGURE", help="print where what this figure counts stands")
    given = options.parse_args()
    modules = [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]
    now, where, totals = measure(modules)
    if given.where:
        if given.where not in where:
            raise SystemExit(f"Nothing to show for {given.where!r}: choose one of {', '.join(where)}.")
        print("\n".join(where[given.where]))
        return 0
    if given.lower:
        lower(now, where["signed"])
    kept = tomllib.loads(CEILINGS.read_text(encoding="utf-8"))
    print(table(now, kept["ceilings"], totals))
    if given.rooms:
        print("\n" + rooms(modules))
    faults = [
        f"{each.meaning}: {now[each.name]:,} is above the ceiling of {kept['ceilings'][each.name]:,}. {each.advice}"
        for each in FIGURES
        if now[each.name] > kept["ceilings"][each.name]
    ]
    faults += [
        f"orchestrator/{name} signs or MACs and stands in no list. Sign through a format that is there; if this one "
        "replaces another, write it under `signed-by` in .ci/house.toml in that one's place."
        for name in where["signed"]
        if name not in kept["signed-by"]
    ]
    for fault in faults:
        print(f"house: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
