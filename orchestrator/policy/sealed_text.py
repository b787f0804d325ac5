"""Format of sealed texts in the ledger, and how they are found in a text.

    {sealed:1:SENDER:READER=KEY,READER~KEY:LABEL:CONTENT}

Sender and readers are key ids; each reader has the key of the content, wrapped: with what its key shares with the
sender's (``=``), or encrypted to it (``~``). The label is the root session of the tree that it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

_BEGINNING: Final = "{sealed:"
_BEGINNING_OCTETS: Final = _BEGINNING.encode()
_TOKEN: Final = re.compile(r"\{sealed:1:([\w-]+):([\w=~,-]+):(\w*):([\w-]+)\}", re.ASCII)
#: What stands for a text that cannot be opened here.
ENCRYPTED: Final = "(encrypted)"


def token(sender: str, readers: str, label: str, content: str) -> str:
    """Return a sealed text."""
    return f"{_BEGINNING}1:{sender}:{readers}:{label}:{content}}}"


def is_sealed(text: str) -> bool:
    """Return True if all of a text is one sealed text."""
    return text.startswith(_BEGINNING) and _TOKEN.fullmatch(text) is not None


def has_sealed(text: str | bytes) -> bool:
    """Return True if a text may hold a sealed one."""
    return _BEGINNING_OCTETS in text if isinstance(text, bytes) else _BEGINNING in text


def defused(text: str) -> str:
    """Return a text of anybody with its sealed texts made unreadable: a copied one is not opened."""
    return text.replace(_BEGINNING, "{sealed :") if _BEGINNING in text else text


def replace_sealed(text: str, read: Callable[[re.Match[str]], str]) -> str:
    """Return the text with each sealed one replaced by what ``read`` makes of its sender, readers, label and content."""
    return _TOKEN.sub(read, text)


def in_values(value: Any, read: Callable[[str], str]) -> Any:
    """Return a JSON value with every text in it read."""
    if isinstance(value, str):
        return read(value)
    if isinstance(value, list):
        return [in_values(one, read) for one in value]
    if isinstance(value, dict):
        return {name: in_values(one, read) for name, one in value.items()}
    return value
