"""`orchestra message send`: publish an envelope."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json, say
from orchestrator.cli.stack import open_stack

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


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
    from orchestrator.cli.documents.messages import Published
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
        print_json(
            Published(message_id=message.header.message_id, stream=str(stream), entry=entry, note=note)
        )
        return
    say(f"published {message.header.message_id} in {stream} as {entry}")
    if note is not None:
        say(f"note: {note}", err=True)
