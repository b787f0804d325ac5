"""Keys of providers stay out of everything that is written down."""

from __future__ import annotations

import os
import re
from typing import Final

#: Names of environment variables whose values are secret.
_SECRET_NAME: Final = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.IGNORECASE)
#: What the keys of the known providers look like.
_KEY: Final = re.compile(r"\b(?:sk|pk|rk|key|xai|gsk|AIza)[-_][A-Za-z0-9*_-]{6,}")
#: Shorter values are words, and appear everywhere.
_SHORTEST: Final = 8


def redact(text: str) -> str:
    """The text without the secrets of this process's environment and without anything that looks like a provider's key."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and _SECRET_NAME.search(name):
            text = text.replace(value, "[secret]")
    return _KEY.sub("[secret]", text)


def one_line(error: BaseException) -> str:
    """Return an error's text on one line and without secrets."""
    return redact(" ".join(str(error).split()))
