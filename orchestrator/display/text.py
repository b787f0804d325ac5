"""Text for people: shown so that it cannot act on a terminal, and nouns that fit their number."""

from __future__ import annotations

import unicodedata
from typing import Final

#: Unicode categories that a terminal may act on or hides: controls (C0, DEL, C1), format characters (bidirectional
#: controls, zero-width and tag characters, the byte order mark), line and paragraph separators, lone surrogates.
_ACTING: Final = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, *, lines: bool = False) -> str:
    """Return the text with every character that a terminal may act on, or hides, written as an escape: ``\\x1b``,
    ``\\u202e``.

    With ``lines`` newlines and tabs stay, for text of several lines; without, a line stays one line. Applied to
    its own result it changes nothing.
    """
    if text.isprintable():
        return text
    return "".join(_shown(character, lines=lines) for character in text)


def well_formed(text: str) -> str:
    """Return the text with halves of surrogate pairs joined, or as U+FFFD: escapes in JSON may be halves, which no
    encoding has.
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _shown(character: str, *, lines: bool) -> str:
    if character == " " or (lines and character in "\n\t"):
        return character
    return _SHORT.get(character) or escaped(character) if acts(character) else character


def acts(character: str) -> bool:
    """Return True if a terminal may act on a character, or hides it."""
    return unicodedata.category(character) in _ACTING


def escaped(character: str) -> str:
    """Return a character as Python and JSON people know it: its code in hexadecimal digits."""
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def word(text: str) -> str:
    """Return a name as one word of at most 64 characters, for a line whose parts stand between spaces."""
    return "_".join(visible(text).split())[:64]


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: ``1 tree``, ``2 trees``; an irregular plural is given."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
