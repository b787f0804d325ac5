"""What `import orchestrator` and `import workers` promise."""

from __future__ import annotations

import ast
import importlib
import pickle
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from celery.utils.serialization import get_pickleable_exception

import orchestrator
import workers
from orchestrator import errors
from orchestrator.errors import OrchestraError


def test_the_public_names_are_sorted_and_there() -> None:
    assert orchestrator.__all__ == sorted(orchestrator.__all__)
    for name in orchestrator.__all__:
        assert getattr(orchestrator, name) is not None
    assert set(orchestrator.__all__) <= set(dir(orchestrator))


@pytest.mark.parametrize("package", [orchestrator, workers])
def test_other_names_are_not_there(package: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = package.nonsense  # type: ignore[attr-defined]


def test_importing_the_package_is_cheap() -> None:
    """An agents file and every `celery …` command begin with it."""
    heavy = ["celery", "redis", "lxml", "pydantic", "rich", "cryptography"]
    code = f"import sys, orchestrator, orchestrator.cli; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_workers_offers_the_type_of_a_context() -> None:
    from orchestrator.worker.context.context import Context

    assert workers.Context is Context


def _tree(error: type[OrchestraError]) -> Iterator[type[OrchestraError]]:
    yield error
    for below in error.__subclasses__():
        yield from _tree(below)


@pytest.mark.parametrize("error", list(_tree(OrchestraError)), ids=lambda error: error.__name__)
def test_every_error_travels_with_celery_and_says_the_same(error: type[OrchestraError]) -> None:
    """With the arguments that it is raised with, and with fewer or more: a sentence must never fail."""
    for arguments in ((), ("one",), ("one", ("a", "b")), ("one", ("a", "b"), "three")):
        raised = error(*arguments)
        back = pickle.loads(pickle.dumps(get_pickleable_exception(raised)))
        assert (type(back), back.args, str(back)) == (error, arguments, str(raised))


DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS.parent / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if "adr" not in page.parts)]


def test_what_the_code_of_a_page_imports_is_there() -> None:
    found = 0
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            with suppress(SyntaxError):  # a signature of the reference
                for node in ast.walk(ast.parse(textwrap.dedent(block))):
                    if (
                        isinstance(node, ast.ImportFrom)
                        and str(node.module).partition(".")[0] == "orchestrator"
                    ):
                        module = importlib.import_module(str(node.module))
                        missing = [
                            name.name
                            for name in node.names
                            # The Celery app needs a stack.
                            if name.name != "app" and not hasattr(module, name.name)
                        ]
                        assert missing == [], page
                        found += 1
    assert found > 20


def test_an_error_that_a_page_names_can_be_imported_beside_what_raises_it() -> None:
    """As it stands under "Raises" in the reference, or on any other page."""
    named = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        listed = re.findall(r"^- `([\w, ]+)`: ", text, re.MULTILINE)
        words = {word for names in listed for word in names.split(", ")}
        if page.parent.name != "reference":
            words |= set(re.findall(r"`(\w+)`", text))
        named |= {word for word in words if isinstance(getattr(errors, word, None), type)}
    assert "InputError" in named
    assert named - set(orchestrator.__all__) == set()
