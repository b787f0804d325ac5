"""`orchestra message`: publish, sign, verify and validate envelopes."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json, say, write_raw
from orchestrator.cli.stack import open_keys, open_stack
from orchestrator.display.text import counted

if TYPE_CHECKING:
    from orchestrator.cli.documents.audit import Verified
    from orchestrator.config.settings import Settings
    from orchestrator.envelope.findings import Finding
    from orchestrator.envelope.parse import ParseLimits
    from orchestrator.envelope.signature import KeyLookup
    from orchestrator.envelope.validate import Report
    from orchestrator.keyring.registry import Keyring
    from orchestrator.keyring.store import KeyStore


@click.command("send")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--sign", "signer", metavar="AGENT", help="Sign it with this agent's key; default: as the file is signed."
)
@click.option(
    "--encrypt", is_flag=True, help="Encrypt the body for its recipient, who alone can read it; needs --sign."
)
@json_option
@stack_options
def send(*, settings: Settings, file: Path, signer: str | None, encrypt: bool, as_json: bool) -> None:
    """Publish the envelope in FILE (`-`: standard input) in the stream of its type and priority.

    Anyone may start work. Other messages count only from a registered external program (`orchestra agents register`).
    """
    from orchestrator.envelope import codec
    from orchestrator.envelope.message_types import SESSION_STARTING
    from orchestrator.envelope.parse import ParseLimits
    from orchestrator.envelope.signature import sign
    from orchestrator.errors import InputError
    from orchestrator.router.received import shard_of_message
    from orchestrator.streams import RedisStreams, StreamId

    if encrypt and signer is None:
        raise click.UsageError(
            "what is encrypted is signed afterwards: say whose key signs it with --sign AGENT"
        )
    data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    limits = ParseLimits(size=settings.max_message_bytes)
    message = codec.decode(data, limits=limits)
    sender = message.header.sender.agent_name
    if signer is not None and signer != sender:
        raise InputError(
            f"the message comes from {sender!r}, so the signature of {signer!r} would not count; "
            f"say --sign {sender}, or name {signer!r} as its sender"
        )
    with open_stack(settings, "send") as parts:
        if encrypt:
            recipient = parts.keyring.recipient(message.header.recipient.agent_name)
            data = codec.encode(parts.encrypter.seal(message, recipient=recipient))
        if signer is not None:
            now_ms = parts.ledger.server_ms()
            data = sign(data, parts.keyring.signer(signer), now_ms=now_ms, limits=limits)
        priority = message.header.priority or parts.routing[message.body.type].priority
        stream = StreamId(shard_of_message(message, settings.shards), message.body.type, priority)
        # Only what begins work waits for room; reports, questions and replies are taken at any time.
        limit = parts.pressure.admit(stream) if message.body.type in SESSION_STARTING else 0
        entry = RedisStreams(parts.redis).publish(stream, data, limit=limit)
        known = parts.agents.get(sender)
    note = None
    if message.body.type not in SESSION_STARTING and known is not None and not known.external:
        note = (
            f"{sender!r} is not an external program, so its {message.body.type} goes to the audit trail and changes "
            "nothing; use `orchestra reply` or `orchestra resume`"
        )
    if as_json:
        from orchestrator.cli.documents.audit import Published

        print_json(
            Published(message_id=message.header.message_id, stream=str(stream), entry=entry, note=note)
        )
        return
    say(f"published {message.header.message_id} in {stream} as {entry}")
    if note is not None:
        say(f"note: {note}", err=True)


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write. Default: standard output.",
)
@stack_options
def sign(file: Any, out: Path | None, settings: Settings) -> None:
    """Sign the envelope in FILE (`-`: standard input) as its sender, in place of any signature it has.

    What is written is its canonical form. The sender's key is taken from the data folder, and made on first use.
    """
    from orchestrator.envelope import signature
    from orchestrator.envelope.parse import ParseLimits
    from orchestrator.machine import SystemClock

    octets = file.read()
    limits = ParseLimits(size=settings.max_message_bytes)
    with _keyring(settings) as keys:
        signer = keys.signer(signature.sender_of(octets, limits))
        signed = signature.sign(octets, signer, now_ms=SystemClock().now_ms(), limits=limits)
    if out is None:
        write_raw(signed)
    else:
        out.write_bytes(signed)


@click.command()
@click.argument("files", type=click.File("rb", lazy=True), nargs=-1, required=True, metavar="FILE...")
@json_option
@stack_options
def verify(files: tuple[Any, ...], *, as_json: bool, settings: Settings) -> None:
    """Verify the signature of the envelope in each FILE (`-`: standard input).

    Keys come from the Redis of the stack that runs, else from the data folder. Exit code 0: all are good; 1: one
    is not.
    """
    size = settings.max_message_bytes
    with _keyring(settings) as keys:
        rows = [_verdict(str(file.name), file.read(), keys, size) for file in files]
    if as_json:
        from orchestrator.cli.documents.audit import VerifiedDocuments

        print_json(VerifiedDocuments(documents=tuple(rows)))
    else:
        for row in rows:
            say(f"{row.file}: {_sentence(row)}")
    if not all(row.valid for row in rows):
        sys.exit(1)


def _verdict(name: str, octets: bytes, keys: KeyLookup, size: int) -> Verified:
    from orchestrator.cli.documents.audit import Verified
    from orchestrator.envelope import signature
    from orchestrator.envelope.parse import ParseLimits, Unparsable, parse
    from orchestrator.errors import SignatureError

    try:
        good = signature.verify(parse(octets, ParseLimits(size=size)).root, keys)
    except Unparsable as refused:
        return Verified(file=name, valid=False, rule=refused.finding.rule, message=refused.finding.message)
    except SignatureError as error:
        return Verified(file=name, valid=False, rule=error.args[0], message=str(error))
    return Verified.of(
        {
            "file": name,
            "valid": True,
            "signer": good.signer,
            "key_id": good.key_id,
            "algorithm": good.algorithm,
            "signed": good.signed_ms,
        }
    )


def _sentence(row: Verified) -> str:
    if not row.valid:
        return f"{row.rule}: {row.message}"
    return f"signed by {row.signer} at {row.signed} with {row.algorithm} key {row.key_id}"


@contextmanager
def _keyring(settings: Settings) -> Iterator[KeyStore | Keyring]:
    """Signs and looks keys up: with the registry of the stack that runs, else with the data folder alone."""
    from orchestrator.keyring.registry import Keyring

    with open_keys(settings) as (store, registry):
        yield store if registry is None else Keyring(store, registry)


#: Says what the live rules (layer 3) find in an envelope that layers 1 and 2 have passed.
LiveCheck = Callable[[bytes, "Report"], Iterable["Finding"]]


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@json_option
@click.option("--online", is_flag=True, help="Also ask the stack: registered agents, keys, duplicates.")
@stack_options
def validate(files: tuple[str, ...], *, as_json: bool, online: bool, settings: Settings) -> None:
    """Validate the envelope in each FILE.

    A folder stands for all .xml files below it, `-` for standard input. Checked are the XML, the schema and
    the rules about content; docs/protocol.md lists them by name. With --online a running stack is asked what its
    router would say, and nothing changes there. Warnings and infos leave the exit code alone.
    Exit code 0: no error; 1: at least one.
    """
    from orchestrator.envelope.parse import DEFAULT_LIMITS

    limits = replace(DEFAULT_LIMITS, size=settings.max_message_bytes)
    with live_rules(settings) if online else nullcontext() as live:
        rows = [(name, _judge(octets, live, limits)) for name, octets in _documents(files, limits.size)]
    if as_json:
        from orchestrator.cli.documents.audit import ValidatedDocuments

        documents = [{"file": n, "valid": _is_valid(findings), "findings": findings} for n, findings in rows]
        print_json(ValidatedDocuments.of({"documents": documents}))
    else:
        _print(rows)
    sys.exit(0 if all(_is_valid(findings) for _, findings in rows) else 1)


def _documents(names: Iterable[str], size: int) -> Iterator[tuple[str, bytes | Finding]]:
    """Each document with its name, read as far as shows whether it is too large; or why it could not be had."""
    from orchestrator.envelope.findings import Finding

    def unreadable(reason: str) -> Finding:
        return Finding(
            "unreadable", "error", None, None, None, f"{reason}; name a file with an envelope in it"
        )

    for name in names:
        if name == "-":
            yield name, sys.stdin.buffer.read(size + 1)
            continue
        paths = _below(name) if Path(name).is_dir() else [name]
        if not paths:
            yield name, unreadable("the folder holds no .xml file")
        for path in paths:
            try:
                with Path(path).open("rb") as file:
                    yield path, file.read(size + 1)
            except OSError as error:
                yield path, unreadable(f"the file cannot be read ({error.strerror})")


def _below(folder: str) -> list[str]:
    return sorted(
        os.path.join(parent, name)  # noqa: PTH118 - the folder is named back as it was given
        for parent, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(".xml")
    )


def _judge(octets: bytes | Finding, live: LiveCheck | None, limits: ParseLimits) -> list[Finding]:
    from orchestrator.envelope.validate import check

    if not isinstance(octets, bytes):
        return [octets]
    report = check(octets, limits=limits)
    findings = list(report.findings)
    if live is not None and report.valid:
        findings += live(octets, report)
    return findings


def _is_valid(findings: Iterable[Finding]) -> bool:
    return all(finding.severity != "error" for finding in findings)


def _print(rows: list[tuple[str, list[Finding]]]) -> None:
    for name, findings in rows:
        if not findings:
            say(f"{name}: valid")
        for finding in findings:
            place = name if finding.line is None else f"{name}:{finding.line}"
            say(f"{place}: {finding.severity}: {finding.message} [{finding.rule}]")
            if finding.path:
                value = "" if finding.value is None else f" = {finding.value!r}"
                say(f"    at {finding.path}{value}")
    if len(rows) > 1:
        counts = Counter(_is_valid(findings) for _, findings in rows)
        say(f"{counted(len(rows), 'document')}: {counts[True]} valid, {counts[False]} not", err=True)


@contextmanager
def live_rules(settings: Settings) -> Iterator[LiveCheck]:
    """The live rules of the stack that the settings name. Nothing is marked as seen.

    Raises:
        ConfigurationError: no stack runs there.
        ServerUnavailable: its Redis does not answer.
    """
    from orchestrator.router.validation.preview import Preview

    with open_stack(settings, "validate") as parts:
        yield Preview(parts).findings
