"""The bundled agents: what they find in source code, and the report they make of it."""

from __future__ import annotations

import ast
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agents.definition import BUNDLED_QUEUE
from orchestrator.agents.loader import load_agents
from orchestrator.demo.lead import _take_in
from orchestrator.demo.module_review import ModuleReview, complexity, review_module
from orchestrator.demo.package_review import PackageReview, find_cycles, find_modules, review_package
from orchestrator.demo.report import LISTED, render_report
from orchestrator.policy.callback import Callback


def review(source: str) -> ModuleReview:
    return review_module("m.py", textwrap.dedent(source))


def findings(source: str, kind: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.text) for finding in review(source).findings if finding.kind == kind]


def test_the_bundled_agents_share_a_queue_of_their_own() -> None:
    agents = load_agents(["orchestrator.demo"])
    assert {name: agent.record.queue for name, agent in agents.items()} == dict.fromkeys(
        agents, BUNDLED_QUEUE
    )
    assert {"lead", "reviewer"} <= set(agents)


@pytest.mark.parametrize(
    ("body", "ways"),
    [
        ("pass", 1),
        ("if a: pass", 2),
        ("if a: pass\nelif b: pass", 3),
        ("return a and b or c", 3),
        ("for x in y:\n  while z: pass", 3),
        ("return [x for x in y if x if z]", 4),
        ("try: pass\nexcept A: pass\nexcept B: pass", 3),
        ("return 1 if a else 2", 2),
        ("assert a", 2),
        ("match a:\n  case 1: pass\n  case 2: pass", 3),
        ("def inner():\n  if a: pass", 1),
        ("return lambda: a if b else c", 2),
    ],
)
def test_complexity_counts_the_ways_through_a_function(body: str, ways: int) -> None:
    tree = ast.parse("def f():\n" + textwrap.indent(body, "  "))
    assert complexity(tree.body[0]) == ways


def test_a_fine_module_has_nothing_to_complain_about() -> None:
    fine = review('"""Says what it is."""\n\n\ndef f():\n    """Does it."""\n    return 1\n')
    assert (fine.score, fine.lines, fine.functions, fine.findings) == (0, 6, 1, [])


def test_an_empty_module_needs_no_docstring() -> None:
    assert review("").score == 0


def test_missing_docstrings_are_found_where_others_read_them() -> None:
    source = """\
    class Public:
        def method(self): return 1
        def _private(self): return 1
        @overload
        def typed(self): ...
        @x.setter
        def x(self, value): self.y = value

    class _Private:
        def method(self): return 1

    def function():
        def inner(): return 1
        return inner
    """
    assert findings(source, "docstring") == [
        (1, "the module has no docstring"),
        (1, "Public has no docstring"),
        (2, "Public.method has no docstring"),
        (12, "function has no docstring"),
    ]


def test_unfinished_work_is_found_and_what_is_empty_on_purpose_is_not() -> None:
    source = '''\
    "TODO in a text is only a text"
    x = 1  # FIXME: later
    def later(): ...
    def never():
        """Not yet."""
        raise NotImplementedError("soon")
    class Shape(Protocol):
        def area(self): ...
    class Base(abc.ABC):
        def area(self): raise NotImplementedError
    class Thing:
        @abstractmethod
        def area(self): ...
        def todo(self): ...
    def fine(): pass
    '''
    assert findings(source, "unfinished") == [
        (2, "FIXME in a comment: FIXME: later"),
        (3, "later() is only `...`"),
        (4, "never() is not implemented"),
        (14, "todo() is only `...`"),
    ]


def test_long_modules_and_complex_functions_are_found() -> None:
    source = "def f(a):\n" + "  if a: pass\n" * 12 + "x = 1\n" * 400
    found = review(source)
    assert findings(source, "size") == [(1, "413 lines")]
    assert findings(source, "complexity") == [(1, "f() has 13 ways through it")]
    assert found.complexity == 13
    assert found.score > 5


@pytest.mark.parametrize("source", ["def f(:\n", "x = '\0'", "  x = 1", "(", "# TODO\n'''"])
def test_what_does_not_parse_is_the_worst(source: str) -> None:
    broken = review_module("m.py", source)
    assert broken.score >= 50
    assert broken.findings[0].text.startswith("does not parse: ")


def test_what_the_parser_has_no_memory_for_does_not_parse(package: Path) -> None:
    source = f"x = {'-' * 20_000}1\n"
    assert review_module("m.py", source).findings[0].text.startswith("does not parse: ")
    (package / "deep.py").write_text(source)
    assert whole(package).modules == 8


def test_what_is_nested_deeply_is_reviewed(package: Path) -> None:
    """The parser takes some thousand levels, which is more than Python's own calls may nest."""
    deep = f"x{'.a' * 1500}"
    body = "\n    ".join(["b = 1", "c = 2", "d = 3", f"raise {deep}"])
    source = f"if {deep}:\n    import pkg.a\ndef f(x):\n    {body}\ndef g(x):\n    raise {deep}\n"
    assert review_module("m.py", source).functions == 2
    (package / "deep.py").write_text(source)
    assert whole(package).modules == 8


@pytest.fixture
def package(tmp_path: Path) -> Path:
    files = {
        "__init__.py": "from pkg.a import f\n",
        "a.py": "import pkg.b\nfrom . import c\ndef f():\n  x = 1\n  y = 2\n  z = 3\n  return x\n",
        "b.py": "from pkg import a\ndef g():\n  x = 1\n  y = 2\n  z = 3\n  return x\n",
        "c.py": "if TYPE_CHECKING:\n  import pkg.a\ndef late():\n  import pkg.a\n",
        "sub/__init__.py": "from ..c import late\n",
        "sub/d.py": "from .. import c\nfrom ..nowhere import x\nclass K:\n  import pkg.c\n",
        "broken.py": "def (",
        ".hidden/e.py": "",
        "__pycache__/f.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "pkg"


def whole(package: Path) -> PackageReview:
    def name_of(path: Path) -> str:
        parts = path.relative_to(package.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    return review_package(
        find_modules([package]), read=Path.read_text, name_of=name_of, keep_going=lambda: None
    )


def test_modules_are_found_below_folders_and_as_files(package: Path, tmp_path: Path) -> None:
    names = [str(path.relative_to(package)) for path in find_modules([package, package / "a.py"])]
    assert names == ["__init__.py", "a.py", "b.py", "broken.py", "c.py", "sub/__init__.py", "sub/d.py"]


def test_a_package_is_seen_as_a_whole(package: Path) -> None:
    found = whole(package)
    assert found.modules == 7
    assert found.cycles == (("pkg.a", "pkg.b"),)
    assert dict(found.most_imported) == {"pkg.a": 2, "pkg.b": 1, "pkg.c": 3}
    assert found.duplicates == (("pkg.a.f", "pkg.b.g"),)
    assert found.largest[0] == ("pkg.a", 7)


def test_the_work_on_a_package_can_be_stopped(package: Path) -> None:
    def stop() -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError):
        review_package(find_modules([package]), read=Path.read_text, name_of=str, keep_going=stop)


@pytest.mark.parametrize(
    ("graph", "cycles"),
    [
        ({}, []),
        ({"a": ["b"], "b": []}, []),
        ({"a": ["b"], "b": ["a"]}, [("a", "b")]),
        ({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": ["e"], "e": ["d"]}, [("a", "b", "c"), ("d", "e")]),
        ({str(n): [str(n + 1)] for n in range(5000)} | {"5000": []}, []),
    ],
)
def test_cycles_are_groups_that_reach_each_other(
    graph: dict[str, list[str]], cycles: list[tuple[str, ...]]
) -> None:
    assert find_cycles(graph) == cycles


def collected(modules: dict[str, str], package: Path) -> dict[str, Any]:
    state: dict[str, Any] = {
        "paths": ["/x"],
        "total": len(modules) + 1,
        "done": 0,
        "failed": [],
        "worst": [],
        "sums": dict.fromkeys(
            (
                "lines",
                "functions",
                "classes",
                "syntax",
                "unfinished",
                "complexity",
                "size",
                "docstring",
                "failed",
            ),
            0,
        ),
        "package": json.loads(json.dumps(whole(package).to_json())),
    }
    for name, source in modules.items():
        text = json.dumps(review_module(name, source).to_json())
        _take_in(state, Callback(id="cb", session="s", status="completed", title=f"Review {name}", text=text))
    _take_in(
        state, Callback(id="cb", session="s", status="failed", title="Review gone.py", text="no such file")
    )
    return state


def test_the_report_lists_the_worst_first(package: Path) -> None:
    modules = {f"m{n}.py": "# TODO\n" * n + "x = 1\n" for n in range(40)}
    state = collected(modules, package)
    text = render_report(state)
    assert "40 of 41 modules reviewed" in text
    assert "findings: 0 unparsable, 780 unfinished," in text
    listed = [line.split()[0] for line in text.partition("no doc\n")[2].splitlines() if ".py  " in line]
    assert listed[:3] == ["m39.py", "m38.py", "m37.py"]
    assert "1 review failed\n  Review gone.py: no such file" in text
    assert "import cycles: 1\n    pkg.a - pkg.b" in text
    assert len(state["worst"]) == len(listed) == LISTED, "what is kept does not grow with the tree"
    assert max(map(len, text.splitlines())) <= 80, "it fits a terminal"


def test_failed_reviews_are_counted_and_the_first_are_kept(package: Path) -> None:
    state = collected({"m.py": "x = 1"}, package)
    for _ in range(30):
        _take_in(state, Callback(id="cb", session="s", status="failed", title="Review more.py", text="gone"))
    assert len(state["failed"]) == 10
    assert "31 reviews failed\n  Review gone.py: no such file\n  Review more.py: gone\n" in render_report(
        state
    )


def test_a_report_of_fine_modules_complains_about_nothing(package: Path) -> None:
    state = collected({"m.py": '"""Fine."""\n'}, package)
    state["failed"] = []
    assert render_report(state).endswith("No module has anything to complain about.")


def test_a_tree_without_modules_is_reported_as_such() -> None:
    assert render_report({"total": 0, "paths": ["/x", "/y"]}) == "no Python modules in /x, /y"
