"""The stack that a command works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.cli.output import say

if TYPE_CHECKING:
    from orchestrator.bootstrap import Container
    from orchestrator.client.client import Client
    from orchestrator.config.settings import Settings
    from orchestrator.keyring.registry import KeyRegistry
    from orchestrator.keyring.store import KeyStore


def open_client(settings: Settings) -> Client:
    """Return a client that says on standard error when it waits for Redis.

    Raises:
        ConfigurationError, ServerUnavailable: as the constructor of `Client`.
    """
    from orchestrator.client.client import Client

    return Client(settings, on_outage=lambda sentence: say(sentence, err=True))


@contextmanager
def open_stack(settings: Settings, name: str) -> Iterator[Container]:
    """The parts of the stack that the settings name, or else of the one that runs on the data folder.

    ``name`` says in CLIENT LIST which command it is. The connections are closed at the end.

    Raises:
        ConfigurationError: there is no stack, or its Redis cannot be used.
        ServerUnavailable: its Redis does not answer.
    """
    from orchestrator.bootstrap import build_container
    from orchestrator.config.stack import resolve, resolve_redis_url
    from orchestrator.redisdb.client import connect

    settings = resolve(settings)
    with connect(resolve_redis_url(settings), settings=settings, name=f"orchestra-{name}") as client:
        yield build_container(client, settings)


@contextmanager
def open_keys(
    settings: Settings, algorithm: str | None = None
) -> Iterator[tuple[KeyStore, KeyRegistry | None]]:
    """The keys of the data folder, and the registry of the stack that runs; None: no stack does.

    Raises:
        ConfigurationError, ServerUnavailable: as :func:`open_stack`.
    """
    from orchestrator.config.stack import resolve
    from orchestrator.keyring.registry import KeyRegistry
    from orchestrator.keyring.store import KeyStore
    from orchestrator.redisdb.client import connect

    store = KeyStore(settings.keys_dir, algorithm or settings.signature_algorithm)
    url = resolve(settings).redis_url
    if url is None:
        yield store, None
        return
    with connect(url, name="orchestra-keys") as client:
        yield store, KeyRegistry(client, store)
