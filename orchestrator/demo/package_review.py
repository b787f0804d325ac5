"""Reviews a package as a whole: which modules import each other, import cycles, and duplicate functions."""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.demo.module_review import UNPARSABLE, mentions
from orchestrator.errors import InputError

#: Statements from which on two equal functions are reported.
_DUPLICATE_FROM_STATEMENTS = 4
_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class PackageReview:
    """The review of a source tree."""

    modules: int
    imports: int  #: imports of one module of the tree by another
    cycles: tuple[tuple[str, ...], ...]  #: modules that import each other, directly or through others
    most_imported: tuple[tuple[str, int], ...]
    largest: tuple[tuple[str, int], ...]  #: module and lines
    duplicates: tuple[tuple[str, ...], ...]  #: functions with the same body, as `module.function`

    def to_json(self) -> dict[str, Any]:
        """The review as JSON values."""
        return asdict(self)


def find_modules(paths: Iterable[Path]) -> list[Path]:
    """Every Python file at or below ``paths``; hidden folders, caches and links are left out."""
    found: set[Path] = set()
    for path in paths:
        if path.suffix == ".py" and path.is_file():
            found.add(path)
            continue
        for candidate in path.rglob("*.py"):
            below = candidate.relative_to(path).parts
            if (
                not any(part.startswith(".") or part == "__pycache__" for part in below)
                and not candidate.is_symlink()
                and candidate.is_file()
            ):
                found.add(candidate)
    return sorted(found)


def review_package(
    files: Sequence[Path],
    *,
    read: Callable[[Path], str],
    name_of: Callable[[Path], str],
    keep_going: Callable[[], None],
) -> PackageReview:
    """Review ``files`` as one package.

    Args:
        files: the modules; those that cannot be read or parsed count, but say nothing.
        read: the text of a module.
        name_of: the dotted name of a module.
        keep_going: called between two modules; it raises when the work is to be stopped.
    """
    names = {name_of(path) for path in files}
    graph: dict[str, set[str]] = {name: set() for name in names}
    sizes: dict[str, int] = {}
    bodies: dict[str, list[str]] = defaultdict(list)
    for path in files:
        keep_going()
        name = name_of(path)
        source, tree = _parse(path, read)
        sizes[name] = source.count("\n")
        if tree is None:
            continue
        graph[name] |= _imports(tree, name, path, names) - {name}
        for node in ast.walk(tree):
            if (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                and sum(isinstance(inner, ast.stmt) for inner in ast.walk(node)) > _DUPLICATE_FROM_STATEMENTS
            ):
                with suppress(RecursionError):  # nested too deeply to be compared
                    bodies[_fingerprint(node)].append(f"{name}.{node.name}")
    imported: dict[str, int] = defaultdict(int)
    for targets in graph.values():
        for target in targets:
            imported[target] += 1
    return PackageReview(
        modules=len(files),
        imports=sum(map(len, graph.values())),
        cycles=tuple(find_cycles(graph)),
        most_imported=_top(imported),
        largest=_top(sizes),
        duplicates=tuple(sorted(tuple(sorted(same)) for same in bodies.values() if len(same) > 1)),
    )


def find_cycles(graph: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """The groups of nodes that can reach each other (Kosaraju's algorithm)."""
    reverse: dict[str, list[str]] = {node: [] for node in graph}
    for node, targets in graph.items():
        for target in targets:
            reverse[target].append(node)
    seen: set[str] = set()
    order = [node for start in sorted(graph) for node in _unseen(start, graph, seen)]
    seen.clear()
    groups = [tuple(sorted(_unseen(start, reverse, seen))) for start in reversed(order)]
    return sorted(group for group in groups if len(group) > 1)


def _unseen(start: str, graph: Mapping[str, Iterable[str]], seen: set[str]) -> list[str]:
    """The nodes that ``start`` reaches and that are not in ``seen``, each after those that it reaches."""
    if start in seen:
        return []
    seen.add(start)
    found, work = [], [(start, iter(graph[start]))]
    while work:
        node, targets = work[-1]
        target = next((target for target in targets if target not in seen), None)
        if target is None:
            found.append(node)
            work.pop()
        else:
            seen.add(target)
            work.append((target, iter(graph[target])))
    return found


def _top(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:_LISTED])


def _parse(path: Path, read: Callable[[Path], str]) -> tuple[str, ast.Module | None]:
    try:
        source = read(path)
    except (OSError, InputError):
        return "", None
    try:
        return source, ast.parse(source)
    except UNPARSABLE:
        return source, None


def _imports(tree: ast.Module, name: str, path: Path, names: set[str]) -> set[str]:
    """Which of ``names`` a module imports when it is loaded: imports inside of functions close no circle."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            # A module that is imported through its package is what is meant, not the package.
            found.update(full if (full := f"{base}.{alias.name}") in names else base for alias in node.names)
        elif isinstance(node, ast.If) and mentions(node.test, "TYPE_CHECKING"):
            waiting.extend(node.orelse)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
    return found & names


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _fingerprint(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Equal for functions with equal arguments and bodies, whatever their names, docstrings and layout."""
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    text = ast.dump(node.args) + "".join(map(ast.dump, body))
    return hashlib.sha256(text.encode()).hexdigest()
