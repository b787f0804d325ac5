"""Which form the ledger's keys have: asked for by every part when it starts, so that no part misreads another's."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import redis

from orchestrator.config.urls import redact_url
from orchestrator.errors import ConfigurationError, UnsupportedFormat
from orchestrator.redisdb import keys, ledger_keys

#: Raised by one whenever keys, hash fields or scripts change so that an older program would misread them.
FORMAT: Final = 3
#: What a ledger has that was written before ledgers said their format.
_UNSAID: Final = 1
#: Shards that are looked at for trees of such a ledger.
_SHARDS: Final = 16


def check_format(client: redis.Redis, url: str) -> None:
    """Return if the ledger has the format of this program; an empty one has it from now on.

    Raises:
        UnsupportedFormat: an older or a newer program wrote it.
        ConfigurationError: another program has overwritten what says its format.
        redis.RedisError: the server does not answer.
    """
    try:
        said: Any = client.get(keys.format_version())
        if said is None and any(client.exists(ledger_keys.roots(shard)) for shard in range(_SHARDS)):
            said = _UNSAID
    except redis.exceptions.ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise ConfigurationError(
                f"{redact_url(url)}: another program has overwritten {keys.format_version()}, which says the format of the "
                "ledger; if no program of another version has worked on it, `orchestra doctor --fix` writes it anew"
            ) from error
        if not isinstance(error, redis.exceptions.NoPermissionError):
            raise
        return  # a user that may do less than any part of a stack, as an external program's
    if said is None:
        # A replica, or a user that only reads, leaves that to others.
        with suppress(redis.ResponseError):
            client.set(keys.format_version(), FORMAT, nx=True)
        return
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    if text != str(FORMAT):
        older = text.isdigit() and int(text) < FORMAT
        what = (
            "let its sessions end with the version that wrote it, then start on an empty database"
            if older
            else "upgrade this part of the stack"
        )
        raise UnsupportedFormat(redact_url(url), text, FORMAT, what)
