"""A broker that is away: whoever listens to it is back a few seconds after it, however long the outage was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError

from orchestrator.config.settings import load_settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.dispatch import build_celery
from orchestrator.dispatch.celery_app import LONGEST_PAUSE_S
from orchestrator.worker.flower import FlowerApp


class Enough(Exception):
    """Ends a wait that would have no end."""


def test_a_worker_looks_for_its_broker_every_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as long as it is away. Celery's own pauses grow to half a minute, and a hundred of them are its last."""
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _: None)
    pauses: list[float] = []

    def note(_error: Exception, pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) > 200:
            raise Enough

    app = build_celery(load_settings(redis_url=f"unix://{tmp_path}/nobody.sock", data=tmp_path))
    with app.connection_for_read() as connection, pytest.raises(Enough):
        connection.ensure_connection(note, app.conf.broker_connection_max_retries)
    assert (pauses[0], max(pauses)) == (1, LONGEST_PAUSE_S)


def test_what_flower_listens_over_waits_for_the_broker(
    start_valkey: Callable[..., ValkeyProcess], tmp_path: Path
) -> None:
    """Flower would sleep after each failure, for twice as long each time. What a page asks for fails at once."""
    server = start_valkey(durable=False)
    server.stop()
    app = build_celery(load_settings(redis_url=server.url, data=tmp_path), kind=FlowerApp)
    connected = threading.Event()

    def listen() -> None:
        with app.connection() as connection:
            assert connection.default_channel is not None
            connected.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    with pytest.raises(OperationalError), app.connection_for_write() as connection:
        assert connection.default_channel is not None
    assert not connected.is_set()
    server.start()
    assert connected.wait(60)
    listener.join()
