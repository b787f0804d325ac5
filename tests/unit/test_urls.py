"""URLs: redacted whatever they hold, and spelt for kombu and back without a loss."""

from __future__ import annotations

import pytest

from orchestrator.config.urls import (
    check_broker_url,
    check_redis_url,
    kombu_url,
    redact_url,
    redis_py_url,
    unix_url,
)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host/0", "redis://:***@host/0"),
        ("redis://user:se%40cret@host/0", "redis://user:***@host/0"),
        ("rediss://user:secret@host/0?ssl_password=secret&ssl_cert_reqs=none", None),
        ("unix:///run/redis.sock?db=0&password=secret", "unix:///run/redis.sock?db=0&password=***"),
        ("amqp://user:secret@host//", "amqp://user:***@host//"),
        ("amqp://", "amqp://"),
        ("amqp://u:secret@a//;amqp://u:secret@b//", "amqp://u:***@a//;amqp://u:***@b//"),
        ("amqp://u:p;secret@host//", "amqp://u:***@host//"),
        ("sqs://key:half/secret@", "sqs://***@"),
        ("amqp://u:half#secret@host//", "amqp://***@host//"),
        ("redis://:half?secret@host/0", "redis://***@host/0"),
        ("amqp://u:half[secret@host//", "amqp://u:***@host//"),
        ("redis://host/0?password=half#secret", "redis://host/0?password=***"),
        ("postgresql://host/db?sslpassword=secret", "postgresql://host/db?sslpassword=***"),
    ],
)
def test_a_redacted_url_holds_no_password(url: str, shown: str | None) -> None:
    redacted = redact_url(url)
    assert "cret" not in redacted
    if shown is not None:
        assert redacted == shown


@pytest.mark.parametrize(
    "url",
    [
        "redis://:p%40ss@host:1234/3",
        "rediss://user:pw@host:6380/1?ssl_cert_reqs=none&ssl_ca_certs=%2Fetc%2Fca.pem",
        "unix:///tmp/a%20b/valkey.sock?db=2",
        "unix://:pw@/run/redis.sock?db=0",
    ],
)
def test_kombu_and_redis_py_spell_the_same_server(url: str) -> None:
    assert redis_py_url(kombu_url(url)) == url
    assert check_redis_url(redis_py_url(kombu_url(url))) == url


def test_a_unix_url_keeps_its_password_and_database_for_kombu() -> None:
    assert (
        kombu_url(unix_url("/tmp/a b/valkey.sock", 3))
        == "redis+socket:///tmp/a%20b/valkey.sock?virtual_host=3"
    )
    assert kombu_url("unix:///run/r.sock?db=0&password=pw") == "redis+socket://:pw@/run/r.sock?virtual_host=0"


def test_a_tls_url_says_to_celery_that_certificates_are_checked() -> None:
    assert "ssl_cert_reqs=CERT_REQUIRED" in kombu_url("rediss://host:6380/0")
    assert "ssl_cert_reqs=CERT_NONE" in kombu_url("rediss://host:6380/0?ssl_cert_reqs=none")


def test_a_broker_url_that_cannot_be_read_is_refused_without_its_password() -> None:
    with pytest.raises(ValueError, match="not a URL; write a password percent-encoded") as caught:
        check_broker_url("amqp://u:half[secret@host//")
    assert "cret" not in str(caught.value)


def test_other_brokers_are_left_alone() -> None:
    assert kombu_url("amqp://u:p@host//") == "amqp://u:p@host//"
    with pytest.raises(ValueError, match="is not a Redis server") as caught:
        redis_py_url("amqp://u:secret@host//")
    assert "secret" not in str(caught.value)
