"""What Flower is started with unless somebody says otherwise: on loopback, and behind a password.

By itself it listens on every address, and shows prompts and answers to whoever asks.
"""

from __future__ import annotations

import secrets
from collections.abc import MutableMapping, Sequence
from typing import Final

USER: Final = "orchestra"


def guard_flower(arguments: Sequence[str], environ: MutableMapping[str, str]) -> str | None:
    """Set what the command line and the environment leave open; returns what to tell the user, if anything."""
    options = {argument.partition("=")[0].lstrip("-").replace("_", "-") for argument in arguments}
    if "flower" not in options:
        return None
    if "address" not in options:
        environ.setdefault("FLOWER_ADDRESS", "127.0.0.1")
    chosen = {"basic-auth", "auth", "auth-provider", "conf"} & options
    if chosen or {"FLOWER_BASIC_AUTH", "FLOWER_AUTH", "FLOWER_CONF"} & environ.keys():
        return None
    password = secrets.token_urlsafe(16)
    environ["FLOWER_BASIC_AUTH"] = f"{USER}:{password}"
    return f"Flower asks for user {USER} and password {password}; set FLOWER_BASIC_AUTH to choose them"
