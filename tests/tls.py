"""A Redis of the operating system that speaks TLS: the embedded one is built without it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.waiting import wait_until


@contextmanager
def tls_server(server: str, openssl: str, folder: Path) -> Iterator[tuple[int, Path]]:
    """Its port, which the system chose, and the certificate of its authority; the password is `pw`."""
    key, certificate = folder / "key.pem", folder / "cert.pem"
    made = f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout {key} -out {certificate}"
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([openssl, *made.split(), *name], check=True, capture_output=True)
    port = free_port()
    options = f"--port 0 --tls-port {port} --bind 127.0.0.1 --requirepass pw --tls-auth-clients no".split()
    options += f"--tls-cert-file {certificate} --tls-key-file {key} --tls-ca-cert-file {certificate}".split()
    process = subprocess.Popen([server, *options, "--save", ""], cwd=folder, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or _answers(port), "an answer")
        if process.poll() is not None:
            pytest.skip("this redis-server was built without TLS")
        yield port, certificate
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False
