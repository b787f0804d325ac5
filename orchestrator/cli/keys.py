"""`orchestra keys`: generate, list, export, import, rotate and revoke the keys of agents."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.options import SubCommands, json_option, stack_options
from orchestrator.cli.output import print_json, say, write_raw
from orchestrator.cli.stack import open_keys
from orchestrator.cli.table import Row, print_table, terminal_width

if TYPE_CHECKING:
    from orchestrator.cli.documents.stack import KeyDocument
    from orchestrator.config.settings import Settings
    from orchestrator.keyring.record import KeyRecord, Use
    from orchestrator.keyring.store import KeyStore

_LATER = "no stack runs on this data folder; registered when one starts"

use_option = click.option(
    "--use",
    type=click.Choice(["sign", "encrypt"]),
    default="sign",
    show_default=True,
    help="What the key is for.",
)
passphrase_option = click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File whose first line encrypts the private keys in the bundle.",
)
sources_option = click.option(
    "--agents",
    "sources",
    multiple=True,
    metavar="MODULE_OR_FILE",
    help="Where agents are defined that another host serves: their keys are made where there are none, and the "
    "operator vouches for what they are. May be repeated.",
)


@click.group(cls=SubCommands)
def keys() -> None:
    """Keys that sign messages and keys that bodies are encrypted to.

    Private keys are files in the data folder. Public keys are registered in Redis when a stack runs on the
    folder or --redis-url names one; what is changed while none runs is registered when the next one starts.
    """


@keys.command()
@click.argument("agents", nargs=-1)
@use_option
@click.option(
    "--algorithm", type=click.Choice(["RSA-SHA256", "Ed25519"]), help="Default: as in the settings."
)
@sources_option
@json_option
@stack_options
def generate(
    agents: tuple[str, ...],
    use: Use,
    algorithm: str | None,
    *,
    sources: tuple[str, ...],
    as_json: bool,
    settings: Settings,
) -> None:
    """Make a key for each AGENT that has none yet."""
    _check_names(agents)
    if not (agents or sources):
        raise click.UsageError("name an AGENT, or with --agents where some are defined")
    with _changing(settings, algorithm) as store:
        records = [store.create(agent, use) for agent in dict.fromkeys((*agents, *_vouch(store, sources)))]
    _show(store, records, as_json=as_json)


@keys.command("list")
@click.option("--agent", help="Only keys of this agent.")
@json_option
@stack_options
def list_(agent: str | None, *, as_json: bool, settings: Settings) -> None:
    """List the keys of the data folder, and those in Redis if a stack runs."""
    with open_keys(settings) as (store, registry):
        found = {record.key_id: record for record in store.list()}
        for record in registry.list() if registry is not None else ():
            known = found.get(record.key_id)
            if known is None or record.serial > known.serial:
                found[record.key_id] = record
    records = sorted(found.values(), key=lambda record: (record.agent, record.use, record.created_ms))
    records = [record for record in records if agent in (None, record.agent)]
    _show(store, records, as_json=as_json)
    if not (records or as_json):
        say(f"no keys of {agent}" if agent else "no keys", err=True)


@keys.command()
@click.argument("agents", nargs=-1)
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write. Default: standard output, if that is no terminal.",
)
@click.option("--public", is_flag=True, help="Only the current public signing keys, as PEM.")
@click.option(
    "--with-operator", is_flag=True, help="Also the operator's private key: the other host can make keys."
)
@sources_option
@passphrase_option
@stack_options
def export(
    agents: tuple[str, ...],
    out: Path | None,
    *,
    public: bool,
    with_operator: bool,
    sources: tuple[str, ...],
    passphrase_file: Path | None,
    settings: Settings,
) -> None:
    """Write the keys of AGENTS (default: all) for another host, private ones included.

    With --agents also those of the agents that are defined there, and of the parts of the stack that are named.
    """
    if out is None and not public and passphrase_file is None and sys.stdout.isatty():
        raise click.UsageError(
            "private keys are not printed on a terminal: write them to a file with -o FILE, or encrypt them with --passphrase-file"
        )
    from orchestrator.agents.registry import SYSTEM_AGENTS
    from orchestrator.keyring.files import write_whole
    from orchestrator.keyring.store import KeyStore

    store = KeyStore(settings.keys_dir, settings.signature_algorithm)
    if sources:
        with _changing(settings) as store:
            defined = _vouch(store, sources)
            for name in SYSTEM_AGENTS.intersection(agents):
                store.create(name)
        agents = tuple(dict.fromkeys((*agents, *defined))) if agents else ()
    if public:
        content = _public_keys(store, agents)
    else:
        content = store.export(
            agents or None, passphrase=_passphrase(passphrase_file), with_operator=with_operator
        )
        if passphrase_file is None:
            say("the private keys in it are not encrypted; --passphrase-file encrypts them", err=True)
    if out is None:
        write_raw(content, newline=False)
    else:
        write_whole(out.absolute(), content)


@keys.command("import")
@click.argument("file", type=click.File("rb"))
@click.option("--agent", help="Whose key it is, if FILE is a PEM file.")
@passphrase_option
@json_option
@stack_options
def import_(
    file: Any, agent: str | None, passphrase_file: Path | None, *, as_json: bool, settings: Settings
) -> None:
    """Take in a bundle of `orchestra keys export`, or an agent's own key as PEM.

    A private PEM key signs for the agent from now on; with a public one its signatures can be verified, as for
    a program in another language that keeps its private key to itself.
    """
    _check_names([agent] if agent is not None else [])
    with _changing(settings, settle=False) as store:
        records = store.import_(file.read(), agent=agent, passphrase=_passphrase(passphrase_file))
    _show(store, records, as_json=as_json)


@keys.command()
@click.argument("agents", nargs=-1, required=True)
@use_option
@click.option(
    "--overlap",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the old key may still sign. Other hosts need that long to import the new one.",
)
@json_option
@stack_options
def rotate(agents: tuple[str, ...], use: Use, overlap: float, *, as_json: bool, settings: Settings) -> None:
    """Give each AGENT a new key. What the old one has signed stays valid."""
    _check_names(agents)
    with _changing(settings) as store:
        records = [store.rotate(agent, use=use, overlap_s=overlap) for agent in agents]
    _show(store, records, as_json=as_json)


@keys.command()
@click.argument("key_ids", nargs=-1, required=True, metavar="KEY_ID...")
@json_option
@stack_options
def revoke(key_ids: tuple[str, ...], *, as_json: bool, settings: Settings) -> None:
    """Revoke keys for good: nothing they signed counts from now on, no matter when it was signed."""
    records: list[KeyRecord] = []
    with open_keys(settings) as (store, registry):
        try:
            records.extend((registry or store).revoke(key_id) for key_id in key_ids)
        finally:
            # What was revoked stays so, also if the next key is unknown.
            if records:
                if registry is None:
                    say(_LATER, err=True)
                _show(store, records, as_json=as_json)


def _check_names(agents: Iterable[str]) -> None:
    """Refuse names that no agent can have."""
    from orchestrator.agents.definition import check_name

    for agent in agents:
        check_name(agent)


@contextmanager
def _changing(settings: Settings, algorithm: str | None = None, *, settle: bool = True) -> Iterator[KeyStore]:
    """The keys of the data folder; what the block changes is registered in the stack that runs, if one does."""
    with open_keys(settings, algorithm) as (store, registry):
        if registry is not None and settle:
            registry.settle_operator()
        yield store
        if registry is not None:
            registry.register_all()
        else:
            say(_LATER, err=True)


def _vouch(store: KeyStore, sources: Iterable[str]) -> list[str]:
    """Vouch for the agents that are defined in ``sources`` and make their keys; the names of those that have one.

    Raises:
        KeyringError: this is not the operator's host.
    """
    from orchestrator.agents.loader import load_agents
    from orchestrator.keyring.vouchers import vouch

    names = []
    for name, definition in load_agents(sources).items() if sources else ():
        if not definition.record.external:
            store.create(name)
            names.append(name)
        vouch(store, definition.record.model_dump(mode="json"))
        say(f"{name} is vouched for as a {definition.record.role}", err=True)
    return names


def _public_keys(store: KeyStore, agents: Iterable[str]) -> bytes:
    from orchestrator.errors import KeyringError

    wanted = set(agents)
    found = [
        record
        for record in store.list()
        if record.use == "sign" and record.current and (not wanted or record.agent in wanted)
    ]
    missing = wanted - {record.agent for record in found}
    if missing:
        raise KeyringError(f"no current key of {', '.join(sorted(missing))} is in {store.folder}")
    return "".join(record.public_pem for record in found).encode()


def _passphrase(file: Path | None) -> bytes | None:
    if file is None:
        return None
    lines = file.read_bytes().splitlines()
    if not lines or not lines[0]:
        raise click.UsageError(f"the first line of {file} is empty; put the passphrase there")
    return lines[0]


def _show(store: KeyStore, records: Iterable[KeyRecord], *, as_json: bool) -> None:
    from orchestrator.cli.documents.stack import KeyDocument, Keys

    rows = [
        KeyDocument.of(
            {
                "key_id": record.key_id,
                "agent": record.agent,
                "use": record.use,
                "algorithm": record.algorithm,
                "state": "revoked"
                if record.revoked_ms is not None
                else "current"
                if record.current
                else "rotated",
                "private": store.has_private(record.key_id),
                "created": record.created_ms,
                "retired": record.retired_ms,
                "revoked": record.revoked_ms,
            }
        )
        for record in records
    ]
    if as_json:
        print_json(Keys(keys=tuple(rows)))
        return
    cells = [Row((row.agent, row.use, row.state, row.key_id, row.algorithm, _made(row))) for row in rows]
    if cells:
        headers = ("AGENT", "USE", "STATE", "KEY", "ALGORITHM", "MADE")
        print_table(headers, cells, width=terminal_width())


def _made(row: KeyDocument) -> str:
    """When a key was made, and whether its private half is here."""
    return f"{row.created or ''}{'' if row.private else '  (public half only)'}"
