"""Each kind of tampering with each table is found, and the first changed row is named: in the database and in an export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from orchestrator.audit.chain import link
from orchestrator.audit.database import CHAINED
from orchestrator.client.client import Client
from orchestrator.envelope.bodies import Message
from tests.integration.router.conftest import forge
from tests.integration.router.trail import intact, verify, write
from tests.kit import Kit
from tests.postgres import TrailDatabase, on_sqlite

Row = dict[str, Any]
#: What stands for itself in a row, so that a row that is put in is one of its own.
IDENTITY = {"messages": "entry_id", "dead_letters": "dead_id", "transitions": "first_id"}


def edited(rows: list[Row], name: str) -> int:
    rows[1]["received_ms"] += 1
    return 2


def deleted(rows: list[Row], name: str) -> int:
    del rows[1]
    return 2


def inserted(rows: list[Row], name: str) -> int:
    rows.insert(2, {**rows[1], IDENTITY[name]: "99-1"})
    for seq, row in enumerate(rows, 1):
        row["seq"] = seq
    return 3


def reordered(rows: list[Row], name: str) -> int:
    rows[1]["seq"], rows[2]["seq"] = rows[2]["seq"], rows[1]["seq"]
    rows.sort(key=lambda row: int(row["seq"]))
    return 2


def cut_off(rows: list[Row], name: str) -> int:
    return int(rows.pop()["seq"])


TAMPERING: list[Callable[[list[Row], str], int]] = [edited, deleted, inserted, reordered, cut_off]


def rechain(rows: list[Row], name: str) -> None:
    """Number the rows again and make their chain anew, as anybody can who may write."""
    chain = ""
    for seq, row in enumerate(rows, 1):
        values = [row["commitment" if (name, c) == ("messages", "sha256") else c] for c in CHAINED[name]]
        chain = row["chain"] = link(chain, values)
        row["seq"] = seq


def first_named(output: str, name: str) -> str:
    """The first line that names a row of a table."""
    return next((line for line in output.splitlines() if line.startswith(f"broken: {name} row ")), output)


pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def trail(kit: Kit) -> Kit:
    """A stack whose trail has some rows in each table, and is intact."""
    for number in range(4):
        Client(parts=kit.parts).submit("reviewer", f"do {number}", key=f"k{number}")
        forge(kit, Message(content="junk"))
        kit.route()
        write(kit)
    assert "intact" in intact(kit)
    return kit


@on_sqlite("name", CHAINED, on_both=["messages"])
def test_in_the_database(trail: Kit, database: TrailDatabase, name: str) -> None:
    whole = database.copy()
    for tamper in TAMPERING:
        rows = [dict(row) for row in sorted(whole[name], key=lambda row: int(row["seq"]))]
        assert len(rows) >= 4
        seq = tamper(rows, name)
        database.put_back({**whole, name: rows})
        bad = verify(trail)
        assert bad.exit_code == 1, (tamper, bad.output)
        assert first_named(bad.stdout, name).startswith(f"broken: {name} row {seq}: "), (tamper, bad.output)
    database.put_back(whole)
    assert verify(trail).exit_code == 0


@on_sqlite("covered", [False, True])
def test_in_an_exported_file(trail: Kit, tmp_path: Path, covered: bool) -> None:
    """Without any server: what the file says of where the trail ends is signed by the operator."""
    file = tmp_path / "trail.zst"
    assert trail.orchestra("audit", "export", str(file)).exit_code == 0
    packed = zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes())
    lines = [json.loads(line) for line in packed.splitlines()]
    for name in CHAINED:
        at = next(number for number, line in enumerate(lines) if line.get("table") == name)
        for tamper in TAMPERING:
            rows = [dict(line) for line in lines if line.get("table") == name]
            seq = tamper(rows, name)
            if covered:
                rechain(rows, name)
            others = [line for line in lines if line.get("table") != name]
            changed = [*others[:at], *rows, *others[at:]]
            file.write_bytes(
                zstandard.ZstdCompressor().compress("\n".join(map(json.dumps, changed)).encode())
            )
            bad = trail.orchestra("audit", "verify", "--file", str(file))
            assert bad.exit_code == 1, (name, tamper, bad.output)
            first = first_named(bad.stdout, name)
            assert first.startswith(f"broken: {name} row {'' if covered else f'{seq}: '}"), (
                name,
                tamper,
                first,
            )


def test_a_file_of_another_revision_is_refused(trail: Kit, tmp_path: Path) -> None:
    file = tmp_path / "trail.zst"
    assert trail.orchestra("audit", "export", str(file)).exit_code == 0
    packed = zstandard.ZstdDecompressor().decompressobj().decompress(file.read_bytes())
    for revision, code in (("1", 0), ("0002", 2)):
        other = packed.replace(b'"revision":"1"', b'"revision":"%s"' % revision.encode(), 1)
        file.write_bytes(zstandard.ZstdCompressor().compress(other))
        assert trail.orchestra("audit", "verify", "--file", str(file)).exit_code == code
