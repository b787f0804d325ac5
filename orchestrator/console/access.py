"""Access to the console: tokens of one use, the cookie, roles, and who a reverse proxy names."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from itsdangerous import BadData, URLSafeTimedSerializer

from orchestrator.errors import ConfigurationError

Role = Literal["operator", "viewer"]

COOKIE: Final = "orchestra-console"
#: Seconds for which a token of one use, and a cookie, are valid.
TOKEN_S: Final = 600
COOKIE_S: Final = 12 * 3600
#: Characters that a lasting token must have: it is a password for everything.
LEAST_TOKEN: Final = 16
_LONGEST_NAME: Final = 100


@dataclass(frozen=True)
class Person:
    """Somebody who uses the console."""

    name: str
    role: Role

    @property
    def acts(self) -> bool:
        """Return True if this person may change anything."""
        return self.role == "operator"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Name who may use a console, and from where."""

    #: The folder with the secret and the used tokens.
    folder: Path
    #: A lasting token, which is entered on a page; empty: there is none.
    token: str = ""
    #: Addresses or networks of reverse proxies whose header names the user.
    proxies: tuple[str, ...] = ()
    user_header: str = "x-forwarded-user"
    #: Users of the proxy who may act; the others look.
    operators: tuple[str, ...] = ()
    #: Nobody may act.
    read_only: bool = False
    #: Names under which the console may be called; empty: any.
    hosts: tuple[str, ...] = ()


class Access:
    """Decides who somebody is."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        if rules.token and len(rules.token) < LEAST_TOKEN:
            raise ConfigurationError(
                f"the console's token has {len(rules.token)} characters; give it at least {LEAST_TOKEN}"
            )
        try:
            self._proxies = [ipaddress.ip_network(name, strict=False) for name in rules.proxies]
        except ValueError as error:
            raise ConfigurationError(
                f"the console's proxies are addresses or networks, such as 10.0.0.5: {error}"
            ) from None
        self._secret = _secret(rules.folder)

    # --- tokens of one use -----------------------------------------------------------------------

    def make_token(self, name: str, role: Role = "operator") -> str:
        """Return a token that lets its bearer in once, under this name."""
        return self._signed("token", {"name": name, "role": role, "id": secrets.token_hex(16)})

    def use_token(self, token: str) -> Person | None:
        """Return who a token lets in; None if it is not valid, has passed its time or was used."""
        fields = self._verified("token", token, TOKEN_S)
        if fields is None or not self._first_use(fields["id"]):
            return None
        return self._person(fields)

    def is_lasting(self, token: str) -> bool:
        """Return True for the lasting token."""
        return bool(self.rules.token) and hmac.compare_digest(token.encode(), self.rules.token.encode())

    # --- programs ----------------------------------------------------------------------------------

    def make_scrape_token(self) -> str:
        """Return a token with which a program may read metrics and nothing else, as long as the secret stays."""
        return self._signed("metrics", {})

    def may_scrape(self, token: str) -> bool:
        """Return True for a token that lets a program read metrics."""
        return self._verified("metrics", token, None) is not None or self.is_lasting(token)

    def _first_use(self, name: str) -> bool:
        """Note the use of a token: one file each, so that it holds for all processes and after a restart."""
        used = self.rules.folder / "used"
        used.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in used.iterdir():
            with suppress(OSError):
                if old.stat().st_mtime < time.time() - 2 * TOKEN_S:
                    old.unlink()
        try:
            os.close(os.open(used / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True

    # --- the cookie --------------------------------------------------------------------------------

    def make_cookie(self, person: Person) -> str:
        """Return the value of the cookie by which somebody is known from now on."""
        return self._signed("cookie", {"name": person.name, "role": person.role})

    def of_cookie(self, value: str) -> Person | None:
        """Return who a cookie stands for; None if it is not valid."""
        fields = self._verified("cookie", value, COOKIE_S)
        return None if fields is None else self._person(fields)

    def of_proxy(self, peer: str, headers: Mapping[str, str]) -> Person | None:
        """Return whom a reverse proxy names; None if the request does not come from a trusted one, or names nobody."""
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return None
        name = headers.get(self.rules.user_header.lower(), "").strip()[:_LONGEST_NAME]
        if not name or not any(address in network for network in self._proxies):
            return None
        return self._person({"name": name, "role": "operator" if name in self.rules.operators else "viewer"})

    def _person(self, fields: Mapping[str, str]) -> Person:
        acts = fields["role"] == "operator" and not self.rules.read_only
        return Person(fields["name"][:_LONGEST_NAME], "operator" if acts else "viewer")

    # --- signatures --------------------------------------------------------------------------------

    def _signed(self, purpose: str, fields: Mapping[str, str]) -> str:
        return str(self._serializer(purpose).dumps(dict(fields)))

    def _verified(self, purpose: str, text: str, lifetime_s: int | None) -> dict[str, str] | None:
        try:
            fields: dict[str, str] = self._serializer(purpose).loads(text, max_age=lifetime_s)
        except BadData:
            return None
        return fields

    def _serializer(self, purpose: str) -> URLSafeTimedSerializer:
        # What was signed for one purpose does not hold for another.
        signer = {"digest_method": hashlib.sha256, "key_derivation": "hmac"}
        return URLSafeTimedSerializer(self._secret, salt=f"orchestra console {purpose}", signer_kwargs=signer)


def _secret(folder: Path) -> bytes:
    """Return the secret of a data folder's console; the first who asks makes it."""
    path = folder / "secret"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        return path.read_bytes()
    made = folder / f"secret.{os.getpid()}.{secrets.token_hex(4)}"
    made.touch(mode=0o600)
    made.write_bytes(secrets.token_bytes(32))
    with suppress(FileExistsError):
        os.link(made, path)  # another process may have been faster: its secret counts
    made.unlink()
    return path.read_bytes()


def is_loopback(host: str) -> bool:
    """Return True for a host that only this machine reaches."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def check_exposure(host: str, rules: Rules) -> None:
    """Refuse an address that others reach, unless something lets only some of them in.

    Raises:
        ConfigurationError: the address is not loopback, and there are neither a token nor a proxy.
    """
    if not is_loopback(host) and not rules.token and not rules.proxies:
        raise ConfigurationError(
            f"the console does not start on {host}, which others can reach, without a token: set "
            "ORCHESTRA_CONSOLE_TOKEN, or name the reverse proxy in ORCHESTRA_CONSOLE_PROXIES, or use --host 127.0.0.1"
        )


def refuses(method: str, headers: Mapping[str, str], hosts: Sequence[str]) -> str:
    """Return why a request is refused whoever sends it; empty: it is not."""
    host = headers.get("host", "")
    if hosts and _name(host) not in hosts:
        return f"this console is not called {host}; open it under its own address"
    if method in ("GET", "HEAD"):
        return ""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        fine = site == "same-origin"
    else:  # an old browser says only where the page is from, and a program says neither
        fine = origin is not None and origin.partition("://")[2] == host
    return "" if fine else "an action has to come from a page of this console"


def _name(host: str) -> str:
    return host[: host.rindex("]") + 1] if "]" in host else host.partition(":")[0]
