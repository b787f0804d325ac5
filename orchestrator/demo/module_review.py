"""Reviews one Python module by its syntax tree. Deterministic, without a model."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

#: From here on a function counts as complex, and a module as long.
COMPLEX_FROM = 11
LONG_FROM_LINES = 400

#: What one finding of each kind adds to a module's score; the worst module has the highest.
WEIGHTS = {"syntax": 50, "unfinished": 5, "complexity": 3, "size": 3, "docstring": 1}

#: What Python's parser raises for a text that is no module; the last, without a word, for one that is nested too deeply.
UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)

_MARK = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.match_case,
)
_EMPTY_ON_PURPOSE = {"abstractmethod", "overload"}


@dataclass(frozen=True, kw_only=True)
class ReviewFinding:
    """Something about a module that deserves a look."""

    kind: str  #: `syntax`, `unfinished`, `complexity`, `size` or `docstring`
    line: int
    text: str


@dataclass(kw_only=True)
class ModuleReview:
    """The review of one module."""

    path: str
    lines: int = 0
    functions: int = 0
    classes: int = 0
    complexity: int = 0  #: of the most complex function
    findings: list[ReviewFinding] = field(default_factory=list)

    @property
    def score(self) -> int:
        """How bad it is: 0 is fine."""
        weighted = sum(WEIGHTS[finding.kind] for finding in self.findings)
        return weighted + max(0, self.complexity - COMPLEX_FROM + 1)

    def to_json(self) -> dict[str, Any]:
        """The review as JSON values, its score included."""
        return {**asdict(self), "score": self.score}


def review_module(path: str, source: str) -> ModuleReview:
    """Review the source of the module at ``path``."""
    review = ModuleReview(path=path, lines=source.count("\n") + (not source.endswith("\n") and source != ""))
    try:
        tree = ast.parse(source)
    except UNPARSABLE as error:
        line = getattr(error, "lineno", None) or 1
        reason = next(iter(error.args), "it is nested too deeply")
        review.findings.append(ReviewFinding(kind="syntax", line=line, text=f"does not parse: {reason}"))
        return review
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            review.classes += 1
        elif isinstance(node, _FUNCTIONS):
            review.functions += 1
            _judge_complexity(review, node)
    if review.lines >= LONG_FROM_LINES:
        review.findings.append(ReviewFinding(kind="size", line=1, text=f"{review.lines} lines"))
    review.findings += _missing_docstrings(tree)
    review.findings += sorted([*_marks(source), *_stubs(tree)], key=lambda finding: finding.line)
    return review


def complexity(function: ast.AST) -> int:
    """The number of ways through a function (McCabe), functions inside of it left out."""
    ways = 1
    for node in _own_nodes(function):
        if isinstance(node, _BRANCHES):
            ways += 1
        elif isinstance(node, ast.BoolOp):
            ways += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            ways += 1 + len(node.ifs)
    return ways


def mentions(node: ast.AST, name: str) -> bool:
    """Whether a name stands in a piece of syntax, however deeply it is nested."""
    return any(name in (getattr(inner, "id", ""), getattr(inner, "attr", "")) for inner in ast.walk(node))


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))


def _judge_complexity(review: ModuleReview, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    ways = complexity(node)
    review.complexity = max(review.complexity, ways)
    if ways >= COMPLEX_FROM:
        text = f"{node.name}() has {ways} ways through it"
        review.findings.append(ReviewFinding(kind="complexity", line=node.lineno, text=text))


def _missing_docstrings(tree: ast.Module) -> Iterator[ReviewFinding]:
    if tree.body and not ast.get_docstring(tree, clean=False):
        yield ReviewFinding(kind="docstring", line=1, text="the module has no docstring")
    yield from _undocumented(tree.body, "")


def _undocumented(body: list[ast.stmt], prefix: str) -> Iterator[ReviewFinding]:
    for node in body:
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)) or node.name.startswith("_"):
            continue
        name = f"{prefix}{node.name}"
        if not ast.get_docstring(node, clean=False) and not _decorators(node) & {"overload", "setter"}:
            yield ReviewFinding(kind="docstring", line=node.lineno, text=f"{name} has no docstring")
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node.body, f"{name}.")


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    names = set()
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.add(target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", ""))
    return names


def _marks(source: str) -> Iterator[ReviewFinding]:
    """Comments that say that something is still to be done."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and (mark := _MARK.search(token.string)):
                text = token.string.lstrip("# ")
                yield ReviewFinding(
                    kind="unfinished", line=token.start[0], text=f"{mark[1]} in a comment: {text[:80]}"
                )
    except (tokenize.TokenError, IndentationError):
        return


def _stubs(tree: ast.Module) -> Iterator[ReviewFinding]:
    """Functions that do nothing yet; what is abstract, or the shape of a protocol, is empty on purpose."""
    yield from _stubs_in(tree.body, abstract=False)


def _stubs_in(body: list[ast.stmt], *, abstract: bool) -> Iterator[ReviewFinding]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            bases = {
                base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
                for base in node.bases
            }
            yield from _stubs_in(node.body, abstract=bool(bases & {"Protocol", "ABC"}))
        elif isinstance(node, _FUNCTIONS) and not abstract and not _decorators(node) & _EMPTY_ON_PURPOSE:
            kind = _empty_kind(node)
            if kind:
                yield ReviewFinding(kind="unfinished", line=node.lineno, text=f"{node.name}() {kind}")


def _empty_kind(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    if len(body) != 1:
        return ""
    only = body[0]
    if isinstance(only, ast.Expr) and isinstance(only.value, ast.Constant) and only.value.value is ...:
        return "is only `...`"
    if isinstance(only, ast.Raise) and mentions(only, "NotImplementedError"):
        return "is not implemented"
    return ""
