"""Checks of the text that programs and agents give: a wrong one is named before it has any effect."""

from __future__ import annotations

from orchestrator.errors import InputError
from orchestrator.ledger.large_text import MAX_BESIDE_BYTES


def check_text(name: str, value: object) -> str:
    """The value, which is text.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, str):
        raise InputError(f"{name} = {value!r} is not text; give a str")
    return value


def check_size(name: str, value: str, most: int = MAX_BESIDE_BYTES) -> None:
    """See that what stands beside a text is short: every look at the session reads it.

    Raises:
        InputError: it is not.
    """
    if len(value) > most // 4 and (size := len(value.encode(errors="surrogatepass"))) > most:
        raise InputError(
            f"{name} has {size} bytes, and at most {most} are allowed; put long text into the task or the message"
        )
