"""`orchestra message validate`: what the rules say about envelopes in files, folders or standard input."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json, say
from orchestrator.cli.stack import open_stack
from orchestrator.display.text import counted

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings
    from orchestrator.envelope.findings import Finding
    from orchestrator.envelope.parse import ParseLimits
    from orchestrator.envelope.validate import Report

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
    from orchestrator.cli.documents.messages import ValidatedDocuments
    from orchestrator.envelope.parse import DEFAULT_LIMITS

    limits = replace(DEFAULT_LIMITS, size=settings.max_message_bytes)
    with live_rules(settings) if online else nullcontext() as live:
        rows = [(name, _judge(octets, live, limits)) for name, octets in _documents(files, limits.size)]
    if as_json:
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
