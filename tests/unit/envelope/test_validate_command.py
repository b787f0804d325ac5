"""`orchestra message validate`: files, folders and standard input; JSON; the exit code; the live rules when wired."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.message import LiveCheck
from orchestrator.config.settings import Settings
from orchestrator.envelope import schemas
from orchestrator.envelope.findings import Finding
from tests.commands import run_command

GOOD = schemas.read("templates/query.xml")
BAD = schemas.read("examples/invalid/message-id-is-nil.xml")
WARNED = schemas.read("examples/valid/warning-retry-excessive.xml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a good envelope, a bad one below it, and something else."""
    (tmp_path / "below").mkdir()
    (tmp_path / "good.xml").write_bytes(GOOD)
    (tmp_path / "below" / "bad.XML").write_bytes(BAD)
    (tmp_path / "notes.txt").write_text("no envelope")
    return tmp_path


validate = partial(run_command, "message", "validate")


def _json(*arguments: str, given: bytes | None = None) -> tuple[int, list[dict[str, Any]]]:
    result = validate("--json", *arguments, stdin=given)
    return result.exit_code, json.loads(result.stdout)["documents"]


def test_a_valid_file_exits_with_0(folder: Path) -> None:
    """And says so."""
    result = validate(str(folder / "good.xml"))
    assert result.exit_code == 0
    assert result.stdout == f"{folder}/good.xml: valid\n"


def test_a_folder_is_walked_and_one_error_exits_with_1(folder: Path) -> None:
    """Only XML files count; the finding has everything that is needed to fix it."""
    code, rows = _json(str(folder))
    assert code == 1
    assert [(row["file"], row["valid"]) for row in rows] == [
        (f"{folder}/below/bad.XML", False),
        (f"{folder}/good.xml", True),
    ]
    assert rows[0]["findings"] == [
        {
            "rule": "uuid-v4",
            "severity": "error",
            "line": 3,
            "path": "/agent-message/header/message-id",
            "value": "00000000-0000-0000-0000-000000000000",
            "message": "<message-id> is not a version 4 UUID; make one, for example with: uuidgen -r",
        }
    ]


def test_text_output_names_place_rule_and_value(folder: Path) -> None:
    """One line that an editor can jump to, one with the path."""
    result = validate(str(folder))
    assert f"{folder}/below/bad.XML:3: error: <message-id> is not a version 4 UUID" in result.stdout
    assert "[uuid-v4]" in result.stdout
    assert "at /agent-message/header/message-id = '00000000" in result.stdout
    assert "2 documents: 1 valid, 1 not" in result.stderr


def test_standard_input_is_named_by_a_dash() -> None:
    """So that it can stand in a pipe."""
    code, rows = _json("-", given=GOOD)
    assert (code, rows) == (0, [{"file": "-", "valid": True, "findings": []}])
    assert _json("-", given=b"")[0] == 1


def test_warnings_do_not_change_the_exit_code() -> None:
    """They are told all the same."""
    code, rows = _json("-", given=WARNED)
    assert code == 0
    assert rows[0]["valid"] is True
    assert [error["severity"] for error in rows[0]["findings"]] == ["warning"]


def test_what_cannot_be_read_is_an_error_of_that_file(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A missing file and a folder without XML; the other files are still looked at."""
    empty = tmp_path_factory.mktemp("empty")
    code, rows = _json(str(folder / "missing.xml"), str(empty), str(folder / "good.xml"))
    assert code == 1
    assert [[error["rule"] for error in row["findings"]] for row in rows] == [
        ["unreadable"],
        ["unreadable"],
        [],
    ]


def test_a_link_that_leads_back_up_does_not_loop(folder: Path) -> None:
    """Folders are not followed through links."""
    (folder / "below" / "up").symlink_to(folder, target_is_directory=True)
    assert len(_json(str(folder))[1]) == 2


def test_the_limit_of_the_settings_is_the_limit_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the router of this stack would refuse for its size is refused, and what it would take is taken."""
    whole = validate("-", stdin=GOOD)
    assert whole.exit_code == 0
    monkeypatch.setenv("ORCHESTRA_MAX_MESSAGE_BYTES", str(len(GOOD) - 1))
    refused = validate("-", stdin=GOOD)
    assert refused.exit_code == 1
    assert f"the document is larger than {len(GOOD) - 1} bytes" in refused.stdout
    large = GOOD.replace(b"<subject>", b"<subject>" + b"x" * 9_000_000)
    monkeypatch.setenv("ORCHESTRA_MAX_MESSAGE_BYTES", "16000000")
    assert validate("-", stdin=large).exit_code == 0


def test_the_live_rules_are_asked_about_valid_envelopes_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --online their findings count like all others."""
    asked: list[bytes] = []

    @contextmanager
    def live_rules(_: Settings) -> Iterator[LiveCheck]:
        def live(octets: bytes, _: object) -> list[Finding]:
            asked.append(octets)
            return [Finding("duplicate", "error", None, None, None, "was seen before; send a new one")]

        yield live

    shutil.copy(folder / "good.xml", folder / "again.xml")
    monkeypatch.setattr("orchestrator.cli.message.live_rules", live_rules)
    offline = validate("--json", str(folder / "good.xml"))
    assert offline.exit_code == 0
    assert asked == []
    online = validate("--json", "--online", str(folder))
    assert online.exit_code == 1
    assert asked == [GOOD, GOOD]
    rules = [[error["rule"] for error in row["findings"]] for row in json.loads(online.stdout)["documents"]]
    assert rules == [["duplicate"], ["uuid-v4"], ["duplicate"]]
