"""Tags that the text of a child or a user may never bring into a resume: made harmless, and still readable."""

from __future__ import annotations

import re
import unicodedata

GUARDED_TAGS = ("agent-callback", "agent-message", "response")

#: Characters that are, or that a normalising reader turns into, the opening of a tag.
_OPENERS = {
    "<": "lt",
    "\N{FULLWIDTH LESS-THAN SIGN}": "#xFF1C",
    "\N{SMALL LESS-THAN SIGN}": "#xFE64",
    "\N{NOT LESS-THAN}": "#x226E",
}
_OPENER_OF = {entity: char for char, entity in _OPENERS.items()}
#: An opener; or one that was made harmless, behind an `amp;` for each further time.
_OPENING = re.compile(f"[{''.join(_OPENERS)}]|&((?:amp;)*)({'|'.join(_OPENER_OF)});")
_SPACES = frozenset({"Cc", "Zl", "Zp", "Zs"})
#: What shows nothing, or is taken out on the way: control and format characters, those without a meaning, marks.
_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Me", "Mn"})
#: Letters and signs that show nothing: the fillers of Hangul, a blank of Braille.
_BLANKS = "\u115f\u1160\u3164\uffa0\u2800"
_MINUS = "\N{MINUS SIGN}"


def defuse(text: str) -> str:
    """``text`` with its guarded tags made harmless and still readable; `restore` is the inverse."""

    def close(match: re.Match[str]) -> str:
        if not _names_guarded_tag(text, match.end()):
            return match.group()
        if match[2]:  # what looks defused already is marked, so that the inverse can tell it apart
            return f"&amp;{match[1]}{match[2]};"
        return f"&{_OPENERS[match.group()]};"

    return _OPENING.sub(close, text)


def restore(text: str) -> str:
    """Return the text that `defuse` was given."""

    def reopen(match: re.Match[str]) -> str:
        if not match[2] or not _names_guarded_tag(text, match.end()):
            return match.group()
        return f"&{match[1][4:]}{match[2]};" if match[1] else _OPENER_OF[match[2]]

    return _OPENING.sub(reopen, text)


def _names_guarded_tag(text: str, start: int) -> bool:
    """Return True if a lenient reader sees the name of a guarded tag, opening or closing, at ``start``.

    Spaces and slashes before the name, invisible characters within it, letter case, and compatibility forms
    of letters and hyphens make no difference.
    """
    name = ""
    for index in range(start, len(text)):
        char = text[index]
        category = unicodedata.category(char)
        if name in GUARDED_TAGS and category in _SPACES:
            return True
        if category in _INVISIBLE or char in _BLANKS or (not name and (category in _SPACES or char == "/")):
            continue
        if name in GUARDED_TAGS:
            return not _continues_name(char)
        plain = unicodedata.normalize("NFKC", char).casefold()
        name += "-" if category == "Pd" or plain == _MINUS else plain
        if not any(tag.startswith(name) for tag in GUARDED_TAGS):
            return False
    return name in GUARDED_TAGS


def _continues_name(char: str) -> bool:
    return char.isalnum() or char in "-_.:"
