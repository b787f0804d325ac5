"""The protocol as data: the XSD, a template for each message type, a corpus of examples. No logic."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable

#: The schema of the envelopes, by file name.
AGENT_MESSAGE = "agent-message-v1.0.xsd"


def path(name: str) -> Traversable:
    """Where the file or folder ``name`` of this package is, for example ``templates/error.xml``."""
    return resources.files(__name__).joinpath(name)


def read(name: str) -> bytes:
    """The octets of the file ``name`` of this package.

    Raises:
        FileNotFoundError: there is no such file.
    """
    return path(name).read_bytes()
