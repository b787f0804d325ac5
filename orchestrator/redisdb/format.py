"""Agreement of all parts of a stack on the format of the ledger's keys, and on settings that say where things are.

Every part checks both when it starts, so that no part misreads another's data.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import redis

from orchestrator.config.settings import ENV_PREFIX, Settings
from orchestrator.config.urls import redact_url
from orchestrator.errors import ConfigurationError, SettingsDisagree, UnsupportedFormat
from orchestrator.ids import MAX_SHARDS
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.raw_pipeline import server_ms

#: Raised by one whenever keys, hash fields or scripts change so that an older program would misread them.
FORMAT: Final = 6
#: The settings that all parts have the same: where sessions are, and after how long a silent worker has lost its runs.
AGREED: Final = ("shards", "lease_s")
#: Milliseconds within which a part that begins shows its first sign of life.
_BEGINS_MS: Final = 5_000


def check_format(client: redis.Redis, url: str) -> None:
    """Check that the ledger has the format of this program; a ledger without a format gets it.

    Raises:
        UnsupportedFormat: an older or a newer program wrote it.
        redis.RedisError: the server does not answer.
    """
    try:
        said: Any = client.get(keys.format_version())
    except redis.exceptions.NoPermissionError:
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


def agree(client: redis.Redis, url: str, settings: Settings) -> None:
    """Return if a part of the stack may begin with these settings; they are the stack's from now on.

    They change only while no part of the stack is alive.

    Raises:
        SettingsDisagree: the stack has others.
        ConfigurationError: it has trees in a shard that these settings leave out.
        redis.RedisError: the server does not answer, or does not allow that.
    """
    from orchestrator.redisdb.scripts import Scripts  # which needs the client, which asks here

    said: Any = client.hget(keys.agreed(), "shards")
    if said is None or int(said) > settings.shards:
        _check_left_out(client, url, settings.shards)
    given = [part for name in AGREED for part in (name, _value(settings, name))]
    reply = Scripts(client).run(
        "agree", [keys.agreed(), keys.services()], [server_ms(client), _BEGINS_MS, *given]
    )
    if reply[0] == b"other":
        raise _disagreement(url, settings, reply[1].decode(), reply[2].decode())


def check_shards(client: redis.Redis, url: str, settings: Settings) -> None:
    """Return if who asks has as many shards as the stack, so that each finds the sessions of the other.

    Raises:
        SettingsDisagree: the stack has another number of them.
        redis.RedisError: the server does not answer.
    """
    with suppress(redis.exceptions.NoPermissionError):  # of an external program
        said: Any = client.hget(keys.agreed(), "shards")
        if said is not None and said.decode() != _value(settings, "shards"):
            raise _disagreement(url, settings, "shards", said.decode())


def _check_left_out(client: redis.Redis, url: str, shards: int) -> None:
    left_out = [ledger_keys.roots(shard) for shard in range(shards, MAX_SHARDS)]
    with suppress(redis.exceptions.NoPermissionError):  # of a part that reads no trees; others ask, too
        if left_out and client.exists(*left_out):
            raise ConfigurationError(
                f"the stack on {redact_url(url)} has trees in shards that shards = {shards} leaves out: "
                f"set {ENV_PREFIX}SHARDS to the number that it had before"
            )


def _value(settings: Settings, name: str) -> str:
    return f"{getattr(settings, name):g}"


def _disagreement(url: str, settings: Settings, name: str, said: str) -> SettingsDisagree:
    variable = ENV_PREFIX + name.upper()
    return SettingsDisagree(redact_url(url), name, said, _value(settings, name), variable)
