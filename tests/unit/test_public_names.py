"""What `import orchestrator` and `import workers` promise."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator

import pytest
from celery.utils.serialization import get_pickleable_exception

import orchestrator
import workers
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
