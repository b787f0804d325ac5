"""The protocol as data: the XSD, a template for each message type, a corpus of examples.

A wheel carries the repository's folder ``schemas/`` as ``orchestrator/schemas/``; in a checkout it lies beside
``orchestrator/``.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

#: The schema of the envelopes, by file name.
AGENT_MESSAGE = "agent-message-v1.0.xsd"


@cache
def _folder() -> Traversable:
    packaged = resources.files("orchestrator").joinpath("schemas")
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "schemas"


def path(name: str) -> Traversable:
    """Return the file or folder ``name`` of the protocol, for example ``templates/error.xml``."""
    return _folder().joinpath(name)


def read(name: str) -> bytes:
    """Return the bytes of the file ``name`` of the protocol.

    Raises:
        FileNotFoundError: there is no such file.
    """
    return path(name).read_bytes()
