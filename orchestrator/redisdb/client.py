"""The connection to the ledger's Redis: one place for time-outs, retries, version and clear errors."""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Callable
from typing import Any, Final, TypeVar

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from orchestrator import machine
from orchestrator.config.settings import Settings
from orchestrator.config.urls import redact_url
from orchestrator.errors import ConfigurationError, OrchestraError, ServerUnavailable, UnsupportedServer
from orchestrator.log import get_logger
from orchestrator.redisdb import keys
from orchestrator.redisdb.format import agree, check_format, check_shards
from orchestrator.redisdb.key_table import is_wrong_type

#: The oldest Redis that has what the scripts and streams need (XAUTOCLAIM, LMOVE, ZADD GT).
MINIMUM_VERSION = (6, 2)
#: Seconds to wait for a connection, and for the answer to one command.
CONNECT_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 30.0
#: Longest BLOCK in milliseconds that a blocking read may ask for, so that it differs from a dead server.
MAX_BLOCK_MS = 1_000

#: How often a command is sent again.
RETRIES = 3

#: What redis-py says of itself on each connection, made once: else it reads its version from a file for each of them.
#: Before redis-py 7.1 it did that once by itself.
DRIVER: Final[dict[str, Any]] = {"driver_info": redis.DriverInfo()} if hasattr(redis, "DriverInfo") else {}


def connect(
    url: str,
    *,
    check: bool = True,
    ledger: bool = True,
    settings: Settings | None = None,
    begins: bool = False,
    name: str | None = None,
    max_connections: int | None = None,
    timeout_s: float = COMMAND_TIMEOUT_S,
) -> redis.Redis:
    """Return a client for the server at ``url``; answers are bytes, safe to share between threads and after a fork.

    Commands are sent again when a connection breaks under them, so that every command must be harmless twice. With
    ``check`` the server is asked for its version first, and, if it is the ``ledger``'s, for its format; ``name`` shows
    in CLIENT LIST. With ``settings`` it is seen that those agree with the stack's, or, where a part of the stack ``begins``
    with them, that they are the stack's from now on. A connection on which no answer came for ``timeout_s`` seconds is given up; a lease lasts much longer.

    Raises:
        ConfigurationError: the URL, the password, the certificate or the database number is wrong.
        UnsupportedServer: the server is older than Redis 6.2.
        SettingsDisagree: the stack on it has other settings.
        ServerUnavailable: nothing answers there.
    """
    if check:
        _probe(url, ledger=ledger, settings=settings, begins=begins)
    return _client(url, RETRIES, name=name, max_connections=max_connections, timeout_s=timeout_s)


def _client(
    url: str,
    retries: int,
    *,
    name: str | None = None,
    max_connections: int | None = None,
    timeout_s: float = COMMAND_TIMEOUT_S,
) -> redis.Redis:
    try:
        return redis.Redis.from_url(
            url,
            # RESP2 on every server and redis-py version: answers have one shape.
            protocol=2,
            decode_responses=False,
            socket_timeout=timeout_s,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            health_check_interval=30,
            retry=Retry(ExponentialBackoff(cap=0.5, base=0.05), retries),
            client_name=name,
            max_connections=max_connections,
            **DRIVER,
        )
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"the URL {redact_url(url)} is not usable: {error}") from error


def _probe(url: str, *, ledger: bool, settings: Settings | None, begins: bool) -> None:
    """Ask the server for its version, format and settings. The retries are ours: redis-py would repeat a wrong password, too."""
    for pause_s in (0.1, 0.3, None):
        client = _client(url, 0)
        try:
            check_server(client, url, ledger=ledger, settings=settings, begins=begins)
        except ServerUnavailable:
            if pause_s is None:
                raise
            machine.sleep(pause_s)
        else:
            return
        finally:
            client.close()


def check_server(
    client: redis.Redis,
    url: str,
    *,
    ledger: bool = True,
    settings: Settings | None = None,
    begins: bool = False,
) -> str:
    """Return the version of the server that ``client`` talks to, if it is one we can work with, as :func:`connect`.

    Raises:
        ConfigurationError, UnsupportedServer, UnsupportedFormat, SettingsDisagree, ServerUnavailable: as :func:`connect`.
    """
    version = ""
    try:
        version = str(client.info("server").get("redis_version", "0"))
        numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:2])
        if numbers < MINIMUM_VERSION:
            raise UnsupportedServer(redact_url(url), version)
        if ledger:
            check_format(client, url)
            _check_replay(client, url)
            if settings is not None:
                (agree if begins else check_shards)(client, url, settings)
    except (redis.RedisError, OSError) as error:
        if is_wrong_type(error):
            from orchestrator.redisdb.all_keys import shared_keys, wrong_types

            wrong = wrong_types(client, shared_keys(1))
            raise ConfigurationError(f"{redact_url(url)}: {'; '.join(map(str, wrong)) or error}") from error
        # A part waits for a server that takes no writes for now, and asks again then.
        if not begins or _refusal(error) is None:
            raise explain(error, url) from error
    return version


#: The line of an ACL file that keeps strangers out, and the ledger in.
SAFE_DEFAULT: Final = "user default off resetpass ~* &* +@all"
#: What a server executes when it reads our changes from its append-only file: commands for each type of key.
_REPLAYED: Final = (
    *("SET {0} 1", "HSET {0} f 1", "HINCRBY {0} f 1", "ZADD {0} 1 m", "SADD {0} m", "RPUSH {0} m"),
    *("LPOP {0}", "XADD {0} * f 1", "XACK {0} g 1-1", "PEXPIREAT {0} 1", "DEL {0}"),
)


def replay_fault(client: redis.Redis) -> str | None:
    """Return why a restart of the server would lose the ledger; None if it would not.

    It reads the append-only file as its user `default`. Redis from 7.0 on, and Valkey up to 9.1.1, skip each transaction,
    and each script with two writes, in which that user may not do something, and say nothing.

    Raises:
        redis.exceptions.NoPermissionError: this user may not ask.
    """
    if not client.info("persistence").get("aof_enabled"):
        return None
    asked = client.pipeline(transaction=False)
    for command in _REPLAYED:
        asked.execute_command("ACL DRYRUN", "default", *command.format(keys.format_version()).split())
    for answer in asked.execute(raise_on_error=False):
        if isinstance(answer, (redis.exceptions.NoPermissionError, redis.ConnectionError)):
            raise answer
        if isinstance(answer, bytes) and answer != b"OK":  # Redis 6.2 has no such command, nor the fault
            return answer.decode(errors="replace").rstrip(".")
    return None


def _check_replay(client: redis.Redis, url: str) -> None:
    with contextlib.suppress(redis.exceptions.NoPermissionError):  # the doctor says so
        if fault := replay_fault(client):
            raise ConfigurationError(
                f"Redis at {redact_url(url)} would lose the ledger at its next restart: it reads its append-only file "
                f"as user `default`, which may not change our keys ({fault}); run "
                f"`{SAFE_DEFAULT.replace('user', 'ACL SETUSER', 1)}` on it and write the same into its ACL file: that "
                "user is off and has no password, so nobody gets in by it"
            )


def explain(error: Exception, url: str) -> OrchestraError:
    """Return the error for the user that an error of redis-py means, with the server's name but no password."""
    server = f"Redis at {redact_url(url)}"
    cause = error.__cause__ or error.__context__ or error
    text = " ".join(str(error).split())
    if isinstance(error, redis.AuthenticationError) or text.startswith(("NOAUTH", "WRONGPASS")):
        given = (
            "the password in the URL" if ":***@" in server or "=***" in server else "a connection without one"
        )
        return ConfigurationError(
            f"{server} asks for a password and refused {given}: {text}; "
            "write it as redis://:PASSWORD@host:port/0 or redis://USER:PASSWORD@host:port/0"
        )
    if isinstance(error, redis.exceptions.NoPermissionError) or text.startswith("ACL failure in script"):
        return ConfigurationError(f"the user of {server} lacks a permission: {text}; extend its ACL")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ConfigurationError(
            f"the certificate of {server} cannot be verified: {cause.verify_message}; "
            "add ?ssl_ca_certs=FILE with the certificate of its authority to the URL"
        )
    if isinstance(cause, FileNotFoundError) and not isinstance(error, redis.ConnectionError):
        return ConfigurationError(f"a certificate file named in {redact_url(url)} does not exist")
    if text.startswith("DB index") or "invalid DB index" in text or "SELECT is not allowed" in text:
        return ConfigurationError(f"{server} has no database of that number: {text}; use 0 or a lower number")
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError, OSError)):
        return ServerUnavailable(server, text.rstrip("."))
    if advice := advice_on_refusal(error):
        return ConfigurationError(f"{server} {advice}")
    return OrchestraError(f"{server} answered: {text}")


def advice_on_refusal(error: BaseException) -> str | None:
    """Return why a server that answers refuses all work for now, and what to do; None for any other error."""
    code = _refusal(error)
    if code is None:
        return None
    text = " ".join(str(error).split()).rstrip(".")
    return _UNWILLING[code][1].format(text)


#: What a server says that takes no commands, or no writes, for as long as it is in some state, whatever they hold: the
#: code of the error; the class that redis-py makes of it, if it has one, whose text is without the code; the advice.
_UNWILLING: Final[dict[str, tuple[type[Exception] | None, str]]] = {
    "READONLY": (
        redis.exceptions.ReadOnlyError,
        "is a replica and takes no writes ({}); name its primary",
    ),
    "OOM": (
        redis.exceptions.OutOfMemoryError,
        "has no memory left ({}); raise its maxmemory, or make room",
    ),
    "MISCONF": (None, "cannot write to its disk ({}); make room there, and see its log"),
    "NOREPLICAS": (None, "is followed by too few replicas to take writes ({}); start them"),
    "LOADING": (redis.exceptions.BusyLoadingError, "is loading its data ({}); wait until it has"),
    "MASTERDOWN": (
        redis.exceptions.MasterDownError,
        "is a replica that has lost its primary ({}); start that, or name another server",
    ),
    "CLUSTERDOWN": (redis.exceptions.ClusterDownError, "is of a cluster that is down ({}); fix the cluster"),
    "TRYAGAIN": (redis.exceptions.TryAgainError, "is moving keys to another server ({}); wait until it has"),
    "UNBLOCKED": (None, "became a replica while it was waited for ({}); name its primary"),
    "BUSY": (None, "is busy with a script ({}); wait, or end the script by SCRIPT KILL"),
}
_CODES: Final = "|".join(_UNWILLING)
#: Where the code stands: first; behind what redis-py says of a pipeline; behind what Redis 6 says of a script.
_CODE: Final = re.compile(
    rf"(?:(?:ERR )?Error running script .*?: -|Command # \d+ .* of pipeline caused error: )?({_CODES}) ",
    re.DOTALL,
)


def _refusal(error: BaseException) -> str | None:
    """Return the code of an error that any other command, or write, would have met at that moment, too."""
    for code, (kind, _) in _UNWILLING.items():
        if kind is not None and isinstance(error, kind):
            return code
    if not isinstance(error, redis.ResponseError):
        return None
    found = _CODE.match(str(error))
    return found[1] if found else None


def refuses_everything(error: BaseException) -> bool:
    """Return True if the server would have refused any other write at that moment too, whatever its content."""
    return lacks_permission(error) or _refusal(error) is not None


def lacks_permission(error: BaseException) -> bool:
    """Return True if the server's ACL denied the request; of a transaction or script, the error's text says so."""
    return isinstance(error, redis.exceptions.NoPermissionError) or (
        isinstance(error, redis.ResponseError)
        and ("because of: NOPERM" in str(error) or "ACL failure in script" in str(error))
    )


def is_outage(error: BaseException) -> bool:
    """Return True if waiting may help: the server is away, or carries nothing out for anybody for now.

    A server that is a replica, full, without a disk, or loading recovers by itself or by its operator's hand, and
    nothing that was sent is at fault.
    """
    if isinstance(error, redis.AuthenticationError):
        return False
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError, ServerUnavailable)):
        return True
    return _refusal(error) is not None


T = TypeVar("T")

_log = get_logger()

#: Seconds that workers, and clients that wait, outlast; by then a lost lease has long given the run to another.
RETRY_FOR_S: Final = 120.0
_FIRST_DELAY_S: Final = 0.05


class Outage:
    """The outages that one caller bears, each for ``retry_for_s`` seconds; between two tries it pauses.

    ``notify`` is called at each failed try with the error, whether it is the first, and the seconds until the next.
    """

    def __init__(
        self,
        notify: Callable[[BaseException, bool, float], None],
        *,
        retry_for_s: float = RETRY_FOR_S,
        longest_pause_s: float = 2.0,
        server: str = "the ledger's Redis",
    ) -> None:
        self._notify = notify
        self._retry_for_s = retry_for_s
        self._longest_pause_s = longest_pause_s
        self._server = server
        self._since: float | None = None
        self._pause_s = _FIRST_DELAY_S

    def bear(self, error: Exception) -> None:
        """Pause after a call that failed; then it may be made again.

        Raises:
            ServerUnavailable: the server stayed away for too long, or refused this very call.
        """
        now = machine.monotonic()
        first = self._since is None
        since = self._since = now if self._since is None else self._since
        if not is_outage(error) or now + self._pause_s > since + self._retry_for_s:
            raise ServerUnavailable(self._server, " ".join(str(error).split())) from error
        self._notify(error, first, self._pause_s)
        machine.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, self._longest_pause_s)

    def end(self) -> None:
        """The server answered: the next outage is another one."""
        self._since = None
        self._pause_s = _FIRST_DELAY_S


def retry_outages(call: Callable[[], T], *, what: str, retry_for_s: float = RETRY_FOR_S) -> T:
    """Return what ``call`` returns, tried again for as long as Redis is away or takes no writes.

    Raises:
        ServerUnavailable: Redis stayed away for ``retry_for_s`` seconds, or refused this very call.
    """

    def log(error: BaseException, _first: bool, retry_in_s: float) -> None:  # noqa: FBT001  (called by position)
        _log.warning("redis-away", during=what, error=str(error), retry_in_s=round(retry_in_s, 2))

    outage = Outage(log, retry_for_s=retry_for_s)
    while True:
        try:
            return call()
        except (redis.RedisError, OSError) as error:
            outage.bear(error)


def was_refused(error: ServerUnavailable) -> bool:
    """Return True if Redis refused that very call: another call at once would end in the same way."""
    return isinstance(error.__cause__, redis.RedisError) and not is_outage(error.__cause__)
