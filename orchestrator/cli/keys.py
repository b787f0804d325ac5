"""`orchestra keys`: the keys of agents from generation to revocation, and the access rules of Redis users."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from orchestrator.cli.options import SubCommands, json_option, stack_options
from orchestrator.cli.output import print_json, say, write_raw
from orchestrator.cli.render import Row, print_table, terminal_width
from orchestrator.cli.stack import open_keys

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings
    from orchestrator.keyring.certificates import KeyCertificate, Use
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
    help="File whose first line is the passphrase that closes the private keys: 12 characters or more.",
)
sources_option = click.option(
    "--agents",
    "sources",
    multiple=True,
    metavar="MODULE_OR_FILE",
    help="Definitions of agents that another host serves: keys that they lack are made, and the operator signs their "
    "records. May be repeated.",
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
        records = [
            store.create(agent, use) for agent in dict.fromkeys((*agents, *_sign_records(store, sources)))
        ]
    _show(store, records, as_json=as_json)


@keys.command("list")
@click.option("--agent", help="Only keys of this agent.")
@json_option
@stack_options
def list_(agent: str | None, *, as_json: bool, settings: Settings) -> None:
    """List the keys of the data folder, and those in Redis if a stack runs."""
    with open_keys(settings) as (store, registry):
        certificates = {each.key_id: each for each in store.list()}
        # The registry knows of revocations what the folder does, and what Redis does.
        certificates.update({each.key_id: each for each in (registry.list() if registry is not None else ())})
    listed = sorted(certificates.values(), key=lambda each: (each.agent, each.use, each.created_ms))
    listed = [each for each in listed if agent in (None, each.agent)]
    _show(store, listed, as_json=as_json)
    if not (listed or as_json):
        say(f"no keys of {agent}" if agent else "no keys", err=True)


@keys.command()
@click.argument("agents", nargs=-1)
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write, with private keys.",
)
@click.option(
    "--public",
    is_flag=True,
    help="Print only what is public, as PEM: certificates and the operator's list of revocations.",
)
@click.option(
    "--with-operator", is_flag=True, help="Also the operator's private key: the other host can certify keys."
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
    """Write the keys of AGENTS (default: all) for another host, private ones included, into a folder.

    It gets a PKCS #12 file for each private key, which the passphrase closes, and trust.pem with the certificates. With
    --agents also the keys of the agents that are defined there, and of the parts of the stack that are named.
    """
    passphrase = _passphrase(passphrase_file)
    if not public and (out is None or passphrase is None):
        raise click.UsageError(
            "private keys are written into a folder and closed: -o FOLDER --passphrase-file FILE"
        )
    from orchestrator.agents.registry import SYSTEM_AGENTS
    from orchestrator.keyring.files import make_private, write_whole
    from orchestrator.keyring.store import KeyStore

    store = KeyStore(settings.keys_dir, settings.signature_algorithm)
    if sources:
        with _changing(settings) as store:
            defined = _sign_records(store, sources)
            for name in SYSTEM_AGENTS.intersection(agents):
                store.create(name)
        agents = tuple(dict.fromkeys((*agents, *defined))) if agents else ()
    if out is None or passphrase is None:
        write_raw(store.trust_bundle(agents or None), newline=False)
        return
    files = store.export(agents or None, passphrase=passphrase, with_operator=with_operator)
    make_private(out)
    for name, content in files.items():
        write_whole(out.absolute() / name, content)


@keys.command("import")
@click.argument(
    "files",
    type=click.Path(path_type=Path, exists=True, allow_dash=True),
    nargs=-1,
    required=True,
    metavar="FILE...",
)
@click.option("--agent", help="Whose key it is, if FILE is a key in PEM.")
@passphrase_option
@json_option
@stack_options
def import_(
    files: tuple[Path, ...],
    agent: str | None,
    passphrase_file: Path | None,
    *,
    as_json: bool,
    settings: Settings,
) -> None:
    """Take in what `orchestra keys export` wrote, a folder or files of it, or an agent's own key as PEM.

    A private PEM key signs for the agent from now on; with a public one its signatures can be verified, as for
    a program in another language that keeps its private key to itself.
    """
    _check_names([agent] if agent is not None else [])
    with _changing(settings, settle=False) as store:
        contents = [content for file in files for content in _contents(file)]
        imported = store.import_(contents, agent=agent, passphrase=_passphrase(passphrase_file))
    _show(store, imported, as_json=as_json)


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
    revoked: list[KeyCertificate] = []
    with open_keys(settings) as (store, registry):
        try:
            revoked.extend((registry or store).revoke(key_id) for key_id in key_ids)
        finally:
            # What was revoked stays so, also if the next key is unknown.
            if revoked:
                if registry is None:
                    say(_LATER, err=True)
                _show(store, revoked, as_json=as_json)


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


def _sign_records(store: KeyStore, sources: Iterable[str]) -> list[str]:
    """Sign the records of the agents that ``sources`` define and make their keys; return the names of those that have one.

    Raises:
        KeyringError: this is not the operator's host.
    """
    from orchestrator.agents.loader import load_agents
    from orchestrator.agents.registry import sign_agent_record

    names = []
    for name, definition in load_agents(sources).items() if sources else ():
        if not definition.record.external:
            store.create(name)
            names.append(name)
        sign_agent_record(store, definition.record.model_dump(mode="json"))
        say(f"signed the record of {name}: {definition.record.role}", err=True)
    return names


def _contents(file: Path) -> list[bytes]:
    """Return what a file holds, or each file of a folder; `-` is standard input."""
    if str(file) == "-":
        return [sys.stdin.buffer.read()]
    files = sorted(file.iterdir()) if file.is_dir() else [file]
    return [each.read_bytes() for each in files]


def _passphrase(file: Path | None) -> bytes | None:
    if file is None:
        return None
    lines = file.read_bytes().splitlines()
    if not lines or not lines[0]:
        raise click.UsageError(f"the first line of {file} is empty; put the passphrase there")
    return lines[0]


def _show(store: KeyStore, records: Iterable[KeyCertificate], *, as_json: bool) -> None:

    found = [(record, store.has_private(record.key_id)) for record in records]
    if as_json:
        from orchestrator.cli.documents.stack import KeyDocument, Keys

        documents = [KeyDocument.of(record, private=private) for record, private in found]
        print_json(Keys(keys=tuple(documents)))
        return
    cells = [
        Row((key.agent, key.use, key.state, key.key_id, key.algorithm, _made(key, private=private)))
        for key, private in found
    ]
    if cells:
        headers = ("AGENT", "USE", "STATE", "KEY", "ALGORITHM", "MADE")
        print_table(headers, cells, width=terminal_width())


def _made(key: KeyCertificate, *, private: bool) -> str:
    """When a key was made, and whether its private half is here."""
    from orchestrator.machine import isoformat

    made = isoformat(key.created_ms) if key.created_ms else ""
    return f"{made}{'' if private else '  (public half only)'}"


@click.command("acl")
@click.argument("user", metavar="ROLE|AGENT")
@click.option(
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    default=("orchestra",),
    show_default=True,
    help="A Celery queue of the stack's agents; may be repeated.",
)
@click.option(
    "--program", is_flag=True, help="It is an external program, even if its name is that of a role."
)
@click.option("--file", "as_file", is_flag=True, help="Print a line for an `aclfile` instead of a command.")
@stack_options
def acl(*, settings: Settings, user: str, queues: tuple[str, ...], program: bool, as_file: bool) -> None:
    """Print the command that makes a Redis user with the least that a ROLE or an external program needs.

    Roles are router, callbacks, reaper, worker, audit, notifier, flower, operator and console (reads only). Any other name is
    that of an external program. Replace PASSWORD with a password. Needs no server.
    """
    from orchestrator.agents.definition import check_name
    from orchestrator.redisdb.acl import KEYS, acl_line, program_rules, role_rules

    check_name(user)
    if user in KEYS and not program:
        rules = role_rules(user, queues=queues, database=_database(settings))
    else:
        rules = program_rules(user, shards=settings.shards)
    line = acl_line(user, rules)
    say(line if as_file else line.replace("user ", "ACL SETUSER ", 1).replace(" on ", " reset on ", 1))


def _database(settings: Settings) -> int:
    """Return the number of the database that Celery uses, as far as the settings name it."""
    number = urlsplit(settings.broker_url or settings.redis_url or "").path.strip("/")
    return int(number) if number.isdecimal() else 0
