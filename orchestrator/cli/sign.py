"""`orchestra message sign` and `orchestra message verify`: signatures of envelopes in files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json, say, write_raw
from orchestrator.cli.stack import open_keys

if TYPE_CHECKING:
    from orchestrator.cli.documents.messages import Verified
    from orchestrator.config.settings import Settings
    from orchestrator.envelope.signature import KeyLookup
    from orchestrator.keyring.ring import Keyring
    from orchestrator.keyring.store import KeyStore


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
    from orchestrator.cli.documents.messages import VerifiedDocuments

    size = settings.max_message_bytes
    with _keyring(settings) as keys:
        rows = [_verdict(str(file.name), file.read(), keys, size) for file in files]
    if as_json:
        print_json(VerifiedDocuments(documents=tuple(rows)))
    else:
        for row in rows:
            say(f"{row.file}: {_sentence(row)}")
    if not all(row.valid for row in rows):
        sys.exit(1)


def _verdict(name: str, octets: bytes, keys: KeyLookup, size: int) -> Verified:
    from orchestrator.cli.documents.messages import Verified
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
    from orchestrator.keyring.ring import Keyring

    with open_keys(settings) as (store, registry):
        yield store if registry is None else Keyring(store, registry)
