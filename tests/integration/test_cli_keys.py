"""`orchestra keys`, `sign` and `verify`, as a user types them; with and without a server."""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from cryptography import x509

from orchestrator.config.settings import load_settings
from orchestrator.envelope import codec
from orchestrator.keyring import algorithms
from tests import messages
from tests.commands import Orchestra, run_command


@pytest.fixture
def orchestra(tmp_path: Path) -> Orchestra:
    """Run `orchestra` on the data folder of a host, by default without a server."""

    def run(
        *words: str, host: str = "first", server: str | None = None, stdin: bytes | None = None
    ) -> Result:
        settings = load_settings(data=tmp_path / host, redis_url=server)
        return run_command(*words, settings=settings, stdin=stdin, catch_exceptions=False)

    return run


@pytest.fixture
def message(tmp_path: Path) -> Path:
    path = tmp_path / "message.xml"
    path.write_bytes(codec.encode(messages.message()))
    return path


def rows(result: Result) -> list[dict[str, str]]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["keys"]


def test_generate_makes_one_key_for_each_agent_and_no_second_one(orchestra: Orchestra) -> None:
    first = rows(orchestra("keys", "generate", "lead", "reviewer", "--json"))
    again = rows(orchestra("keys", "generate", "lead", "reviewer", "--json"))
    assert [row["agent"] for row in first] == ["lead", "reviewer"]
    assert orchestra("keys", "list", "--agent", "lea").stderr == "no keys of lea\n"
    assert again == first
    assert set(first[0]) == {
        "key_id", "agent", "use", "algorithm", "state", "private", "created", "retired", "revoked",
    }  # fmt: skip


@pytest.mark.parametrize("command", [["generate"], ["rotate"], ["import", "KEY", "--agent"]])
def test_a_name_that_no_agent_can_have_gets_no_key(
    orchestra: Orchestra, command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "key.pem").write_bytes(algorithms.private_pem(algorithms.generate("Ed25519")))
    command = [str(tmp_path / "key.pem") if word == "KEY" else word for word in command]
    refused = orchestra("keys", *command, "two words")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("Error: agent 'two words': a name has 1 to 100 letters")
    assert rows(orchestra("keys", "list", "--json")) == []


def test_the_algorithm_can_be_chosen(orchestra: Orchestra) -> None:
    (row,) = rows(orchestra("keys", "generate", "lead", "--algorithm", "RSA-SHA256", "--json"))
    assert row["algorithm"] == "RSA-SHA256"
    public = x509.load_pem_x509_certificate(
        orchestra("keys", "export", "--public", "lead").stdout_bytes
    ).public_key()
    assert getattr(public, "key_size", 0) == 2048


def test_without_a_server_the_user_is_told_what_is_still_to_come(orchestra: Orchestra) -> None:
    result = orchestra("keys", "generate", "lead")
    assert "registered when one starts" in result.stderr
    assert "lead" in result.stdout


def test_a_message_is_signed_and_verified_without_a_server(
    orchestra: Orchestra, message: Path, tmp_path: Path
) -> None:
    signed = tmp_path / "signed.xml"
    assert orchestra("message", "sign", str(message), "--out", str(signed)).exit_code == 0
    (row,) = json.loads(orchestra("message", "verify", str(signed), "--json").stdout)["documents"]
    assert (row["valid"], row["signer"], row["algorithm"]) == (True, "lead", "Ed25519")
    through_pipes = orchestra("message", "sign", "-", stdin=message.read_bytes()).stdout_bytes
    assert orchestra("message", "verify", "-", stdin=through_pipes).exit_code == 0


def test_verify_says_what_is_wrong_and_exits_with_1(
    orchestra: Orchestra, message: Path, tmp_path: Path
) -> None:
    signed, changed, broken = (tmp_path / name for name in ("signed.xml", "changed.xml", "broken.xml"))
    orchestra("message", "sign", str(message), "-o", str(signed))
    changed.write_bytes(signed.read_bytes().replace(b"hello", b"hallo"))
    broken.write_bytes(b"<agent-message")
    result = orchestra("message", "verify", *map(str, (signed, message, changed, broken)), "--json")
    assert result.exit_code == 1
    verdicts = json.loads(result.stdout)["documents"]
    assert [row["valid"] for row in verdicts] == [True, False, False, False]
    assert [row["rule"] for row in verdicts[1:]] == ["signature-missing", "signature-invalid", "malformed"]
    text = orchestra("message", "verify", str(changed))
    assert text.exit_code == 1
    assert "signature-invalid: the signature by 'lead' does not fit" in text.stdout


def test_what_is_no_envelope_is_not_signed(orchestra: Orchestra) -> None:
    for octets in (b"", b"<invoice/>", b"\x00", b"<!DOCTYPE x><x/>"):
        result = orchestra("message", "sign", "-", stdin=octets)
        assert result.exit_code == 2
        assert result.stderr.startswith("Error: ")
        assert result.stdout == ""


def test_the_limit_on_size_is_that_of_the_settings(
    orchestra: Orchestra, message: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large.xml"
    large.write_bytes(message.read_bytes().replace(b"hello", b"x" * 9_000_000))
    assert "larger than 8388608 bytes" in orchestra("message", "sign", str(large)).stderr
    monkeypatch.setenv("ORCHESTRA_MAX_MESSAGE_BYTES", "16000000")
    assert orchestra("message", "sign", str(large), "-o", str(large)).exit_code == 0
    assert orchestra("message", "verify", str(large)).exit_code == 0
    monkeypatch.delenv("ORCHESTRA_MAX_MESSAGE_BYTES")
    assert "larger than 8388608 bytes" in orchestra("message", "verify", str(large)).stdout


def test_a_damaged_key_file_is_named(orchestra: Orchestra, message: Path, tmp_path: Path) -> None:
    """One line with the file and what becomes of it."""
    (key,) = rows(orchestra("keys", "generate", "lead", "--json"))
    for suffix, command in (("pem", ["message", "sign", str(message)]), ("crt", ["keys", "list"])):
        file = tmp_path / "first" / "keys" / f"{key['key_id']}.{suffix}"
        file.write_text("damaged")
        refused = orchestra(*command)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert refused.stderr.startswith(f"Error: {file}: ")
        assert "bring the file back from a backup" in refused.stderr


def test_a_rotated_key_still_verifies_and_a_revoked_one_does_not(
    orchestra: Orchestra, message: Path, tmp_path: Path
) -> None:
    signed = tmp_path / "signed.xml"
    orchestra("message", "sign", str(message), "-o", str(signed))
    (old,) = rows(orchestra("keys", "list", "--json"))
    (new,) = rows(orchestra("keys", "rotate", "lead", "--json"))
    assert new["key_id"] != old["key_id"]
    assert orchestra("message", "verify", str(signed)).exit_code == 0
    states = {row["key_id"]: row["state"] for row in rows(orchestra("keys", "list", "--json"))}
    assert states == {old["key_id"]: "rotated", new["key_id"]: "current"}
    assert orchestra("keys", "revoke", old["key_id"]).exit_code == 0
    result = orchestra("message", "verify", str(signed))
    assert result.exit_code == 1
    assert "key-revoked" in result.stdout


def test_an_unknown_key_cannot_be_revoked(orchestra: Orchestra) -> None:
    result = orchestra("keys", "revoke", "key_" + "0" * 32)
    assert result.exit_code == 2
    assert "orchestra keys list" in result.stderr


def test_what_was_revoked_before_an_unknown_key_is_said(orchestra: Orchestra) -> None:
    (key,) = rows(orchestra("keys", "generate", "lead", "--json"))
    result = orchestra("keys", "revoke", key["key_id"], "key_" + "0" * 32, "--json")
    assert result.exit_code == 2
    assert [row["key_id"] for row in json.loads(result.stdout)["keys"]] == [key["key_id"]]


def test_a_second_host_imports_what_it_serves(orchestra: Orchestra, message: Path, tmp_path: Path) -> None:
    exported, passphrase = tmp_path / "exported", tmp_path / "pass"
    passphrase.write_text("correct horse battery\n")
    orchestra("keys", "generate", "lead", "secret")
    with_pass = ("--passphrase-file", str(passphrase))
    assert orchestra("keys", "export", "lead", "-o", str(exported), *with_pass).exit_code == 0
    assert {stat.S_IMODE(file.stat().st_mode) for file in exported.iterdir()} == {0o600}
    assert not any(b"PRIVATE KEY" in file.read_bytes() for file in exported.iterdir())
    for wrong in ((), ("--passphrase-file", str(message))):
        closed = orchestra("keys", "import", str(exported), *wrong, host="second")
        assert closed.exit_code == 2
        assert "; say the right passphrase with --passphrase-file; nothing was imported\n" in closed.stderr
    (row,) = rows(orchestra("keys", "import", str(exported), "--json", *with_pass, host="second"))
    assert row["agent"] == "lead"
    signed = orchestra("message", "sign", str(message), host="second").stdout_bytes
    assert orchestra("message", "verify", "-", stdin=signed).exit_code == 0
    refused = orchestra("keys", "generate", "other", host="second")
    assert refused.exit_code == 2
    assert "operator's host" in refused.stderr


def test_public_keys_are_exported_for_other_tools(orchestra: Orchestra) -> None:
    orchestra("keys", "generate", "lead")
    assert orchestra("keys", "export", "--public", "nobody").exit_code == 2
    trust = orchestra("keys", "export", "--public", "lead").stdout_bytes
    (row,) = rows(orchestra("keys", "import", "-", "--json", host="second", stdin=trust))
    assert (row["agent"], row["private"]) == ("lead", False)


def test_the_public_key_of_a_foreign_program_can_be_registered(
    orchestra: Orchestra, redis_url: str, tmp_path: Path
) -> None:
    pem = tmp_path / "public.pem"
    pem.write_text(algorithms.public_pem(algorithms.generate("Ed25519").public_key()))
    orchestra("keys", "import", str(pem), "--agent", "foreign", server=redis_url)
    found = rows(orchestra("keys", "list", "--agent", "foreign", "--json", server=redis_url, host="second"))
    assert [(row["agent"], row["private"]) for row in found] == [("foreign", False)]


def test_with_a_server_another_host_verifies_and_obeys_a_revocation(
    orchestra: Orchestra, redis_url: str, message: Path
) -> None:
    signed = orchestra("message", "sign", str(message), server=redis_url).stdout_bytes
    assert orchestra("message", "verify", "-", server=redis_url, host="second", stdin=signed).exit_code == 0
    (row,) = rows(orchestra("keys", "list", "--json", server=redis_url, host="second"))
    assert orchestra("keys", "revoke", row["key_id"], server=redis_url, host="second").exit_code == 2
    assert orchestra("keys", "revoke", row["key_id"], server=redis_url).exit_code == 0
    result = orchestra("message", "verify", "-", server=redis_url, host="second", stdin=signed)
    assert result.exit_code == 1
    assert "key-revoked" in result.stdout


def test_what_was_done_without_a_server_reaches_it_with_the_next_command(
    orchestra: Orchestra, redis_url: str
) -> None:
    orchestra("keys", "generate", "lead")
    assert rows(orchestra("keys", "list", "--json", server=redis_url, host="second")) == []
    orchestra("keys", "generate", "reviewer", server=redis_url)
    found = rows(orchestra("keys", "list", "--json", server=redis_url, host="second"))
    assert [row["agent"] for row in found] == ["lead", "reviewer"]


def test_a_folder_of_another_stack_is_told_so(orchestra: Orchestra, redis_url: str) -> None:
    assert orchestra("keys", "generate", "lead", server=redis_url).exit_code == 0
    assert orchestra("keys", "generate", "lead", host="second").exit_code == 0
    result = orchestra("keys", "generate", "other", server=redis_url, host="second")
    assert result.exit_code == 2
    assert "another operator" in result.stderr


def test_private_keys_are_not_printed_on_a_terminal(tmp_path: Path) -> None:
    def on_a_terminal(*arguments: str) -> tuple[int, str]:
        """The exit code, and what the terminal shows of standard output."""
        screen, end = pty.openpty()
        command = [sys.executable, "-m", "orchestrator", "keys", *arguments, "--data", str(tmp_path)]
        try:
            done = subprocess.run(command, stdout=end, stderr=subprocess.DEVNULL, check=False)
            os.write(end, b"<end>")
            shown = b""
            while b"<end>" not in shown:
                shown += os.read(screen, 65536)
        finally:
            os.close(end)
            os.close(screen)
        return done.returncode, shown.decode()

    on_a_terminal("generate", "far")
    (tmp_path / "pass").write_text("a long passphrase")
    closed = ("--passphrase-file", str(tmp_path / "pass"))
    assert on_a_terminal("export", "far") == on_a_terminal("export", "far", *closed) == (2, "<end>")
    assert on_a_terminal("export", "far", "-o", str(tmp_path / "exported")) == (2, "<end>")
    code, screen = on_a_terminal("export", "far", "--public")
    assert (code, "BEGIN CERTIFICATE" in screen, "PRIVATE" in screen) == (0, True, False)
    assert on_a_terminal("export", "far", *closed, "-o", str(tmp_path / "exported")) == (0, "<end>")
