"""Server URLs: checked, shown without their passwords, and turned into kombu's spelling.

redis-py and kombu spell the same server differently: a unix socket is ``unix:///path?db=1`` to one
and ``redis+socket:///path?virtual_host=1`` to the other, and Celery wants the certificate rule of a
``rediss://`` URL spelt out. Everything here is pure text; nothing connects.
"""

from __future__ import annotations

import re
from contextlib import suppress
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

#: Schemes that name a Redis or Valkey server.
REDIS_SCHEMES = ("redis", "rediss", "unix")
#: Schemes that name a PostgreSQL database.
POSTGRES_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")

_CERT_RULES = {"required": "CERT_REQUIRED", "optional": "CERT_OPTIONAL", "none": "CERT_NONE"}


def redact_url(url: str) -> str:
    """Return the URL with every password in it replaced by ``***``; safe to print and to log."""
    # kombu takes several, separated by semicolons.
    return ";".join(map(_redact, re.split(r";(?=[A-Za-z][A-Za-z0-9+.-]*://)", url)))


def _redact(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    userinfo, at, host = authority.rpartition("@")
    if at and ":" in userinfo:
        rest = f"{userinfo.partition(':')[0]}:***@{host}{rest[len(authority) :]}"
    elif authority and not at and "@" in rest:  # a slash, # or ? of the password is not percent-encoded
        rest = f"***@{rest.rpartition('@')[2]}"
    return re.sub("([^&=?]*password)=[^&]*", r"\1=***", f"{scheme}{separator}{rest}")


def _parts(url: str, *, example: str) -> SplitResult:
    """Return the parts of a URL.

    Raises:
        ValueError: it is not a URL. The sentence holds no part of it, which may be a part of the password.
    """
    with suppress(ValueError):
        parts = urlsplit(url)
        _ = parts.port
        if not (parts.netloc and "@" in parts.path):
            return parts
    raise ValueError(
        f"not a URL; write it like {example}, and a password percent-encoded (%2F for /, %40 for @)"
    )


def check_notify_url(url: str) -> str:
    """Return ``url`` as given if events can be posted to it.

    Raises:
        ValueError: with a sentence that says what is wrong and holds no part of the URL, which may be secret.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
        fine = parts.scheme in ("http", "https") and parts.hostname and url.isprintable() and " " not in url
    except ValueError:
        fine = False
    if not fine:
        raise ValueError("not a URL that events can be posted to; write it like https://host/path")
    return url


def check_redis_url(url: str) -> str:
    """Return ``url`` as given if redis-py can take it.

    Raises:
        ValueError: with a sentence that says what is wrong and holds no password.
    """
    parts = _parts(url, example="redis://host:6379/0")
    if parts.scheme not in REDIS_SCHEMES:
        raise ValueError(
            f"{parts.scheme!r} is not a Redis URL scheme; write it like redis://host:6379/0, "
            "rediss://host:6380/0 or unix:///path/to/socket?db=0"
        )
    if parts.scheme == "unix":
        if not parts.path:
            raise ValueError("no socket is named; write it like unix:///path/to/socket?db=0")
        database = dict(parse_qsl(parts.query)).get("db", "0")
    else:
        if not parts.hostname:
            raise ValueError(f"no host is named; write it like {parts.scheme}://host:6379/0")
        database = parts.path.strip("/") or dict(parse_qsl(parts.query)).get("db", "0")
    if not (database.isascii() and database.isdigit()):
        raise ValueError(f"the database {database!r} is not a number; use 0, or what your server has")
    return url


def check_broker_url(url: str) -> str:
    """Return ``url`` as given if it is one; whether there is such a kind of broker is for kombu to say.

    Raises:
        ValueError: with a sentence that says what is wrong and holds no password.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise ValueError("not a URL; write it like redis://host:6379/1 or amqp://user:password@host//")
    try:
        urlsplit(url)
    except ValueError:
        raise ValueError("not a URL; write a password percent-encoded (%5B for [, %40 for @)") from None
    if scheme in REDIS_SCHEMES and ";" not in url:  # kombu takes several, separated by semicolons
        check_redis_url(redis_py_url(url))
    return url


def check_audit_url(url: str) -> str:
    """Return ``url`` as given if it names a PostgreSQL database.

    Raises:
        ValueError: with a sentence that says what is wrong and holds no password.
    """
    scheme = _parts(url, example="postgresql://user@host/database").scheme
    if scheme not in POSTGRES_SCHEMES:
        raise ValueError(
            f"{scheme!r} is not a PostgreSQL URL scheme; write it like postgresql://user@host/database, "
            "or name a SQLite file with audit_path"
        )
    return url


def unix_url(path: str, db: int = 0) -> str:
    """Return the URL of the server that listens on the unix socket at ``path``."""
    return f"unix://{quote(path)}?db={db}"


def kombu_url(url: str) -> str:
    """Return the same server as Celery's broker and result backend want it spelt.

    URLs of other brokers (``amqp://`` and so on) and URLs already in kombu's spelling come back unchanged.
    """
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "unix":
        query["virtual_host"] = query.pop("db", "0")
        user = unquote(parts.username or "")
        password = query.pop("password", None) or unquote(parts.password or "")
        authority = f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
        return f"redis+socket://{authority}{parts.path}?{urlencode(query)}"
    if parts.scheme == "rediss":
        rule = query.get("ssl_cert_reqs", "required")
        query["ssl_cert_reqs"] = _CERT_RULES.get(rule.lower(), rule)
        return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(query), ""))
    return url


def redis_py_url(url: str) -> str:
    """Return the same server as redis-py wants it spelt; the inverse of :func:`kombu_url` for Redis servers.

    Raises:
        ValueError: the URL names a broker that is not a Redis server.
    """
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "redis+socket":
        query["db"] = query.pop("virtual_host", "0")
        netloc = parts.netloc
        return f"unix://{netloc}{parts.path}?{urlencode(query)}"
    if parts.scheme == "rediss":
        names = {value: key for key, value in _CERT_RULES.items()}
        rule = query.get("ssl_cert_reqs")
        if rule is not None:
            query["ssl_cert_reqs"] = names.get(rule, rule)
        return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(query), ""))
    if parts.scheme not in REDIS_SCHEMES:
        raise ValueError(f"{redact_url(url)} is not a Redis server")
    return url
