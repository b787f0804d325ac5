"""Runs every fuzzer for its share of the time; prints seed and counts, and the input of the first difference.

python -m tests.fuzz.run [--seconds N] [--seed N]
"""

from __future__ import annotations

import argparse
import base64
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from lxml import etree

from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.display.text import acts, visible
from orchestrator.envelope import codec
from orchestrator.envelope.model import AgentMessage
from orchestrator.policy.callback import Callback
from orchestrator.policy.callback_text import parse_callbacks, render_callbacks
from orchestrator.redisdb.client import connect
from tests.fuzz import readers
from tests.properties.envelopes import messages
from tests.properties.ledger_plays import Broken, play
from tests.properties.mirrored import Differs, Mirrored, random_commands, whole_play

#: Of text that somebody means to do harm with.
PIECES = [
    *[
        "<agent-callback>",
        "</agent-callback>",
        '<agent-callback session="s" type="aggregated">',
        "<response>",
    ],
    *[
        "&lt;",
        "&amp;lt;",
        "&#60;",
        "&#9999999;",
        "\uff1c",
        "\u226e",
        "<\u0338",
        "<\u200bagent-callback>",
        "< /agent-callback>",
    ],
    *[
        "\x1b]0;x\x07",
        "\x1b[2J",
        "\x9b2J",
        "\u202e",
        "\u2066",
        "\x00",
        "\r",
        "\n",
        "\x7f",
        "\u2028",
        "\ud800",
        "\U000e0041",
    ],
    *[
        "\n\n### Context\n\n",
        "\n[cut after ",
        '"',
        "{",
        "[" * 50,
        "a",
        " ",
        "é",
        "🎻",
        'size="99"',
        "ses_",
        "9" * 30,
    ],
]
Fuzzer = Callable[[random.Random], str]


class Found(Exception):
    """Two differ: what is wrong, and for which input."""


def text(chance: random.Random) -> str:
    pieces = [chance.choice(PIECES) for _ in range(chance.randrange(12))]
    pieces += [chr(chance.randrange(0x110000)) for _ in range(chance.randrange(4))]
    chance.shuffle(pieces)
    return "".join(pieces)


def fuzz_readers(chance: random.Random) -> str:
    octets = readers.mutant(chance)
    try:
        return readers.compare(octets, chance)
    except Exception as error:
        raise Found(f"{type(error).__name__}: {error}", octets) from error


def fuzz_encoder(chance: random.Random) -> str:
    """A hundred messages, each canonical as it is written; one of them also by xmllint."""
    xmllint = shutil.which("xmllint")
    last: list[AgentMessage] = []

    @seed(chance.randrange(2**32))
    @settings(
        max_examples=100,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(messages)
    def encode(message: AgentMessage) -> None:
        octets = codec.encode(message)
        root = etree.fromstring(octets, etree.XMLParser(huge_tree=True))
        if etree.tostring(root, method="c14n", exclusive=True, with_comments=False) != octets:
            raise Found("lxml's canonical form is another", octets)
        if codec.decode(octets) != message:
            raise Found("it does not come back", octets)
        last[:] = [message]

    encode()
    octets = codec.encode(last[0])
    if xmllint is not None:
        command = [xmllint, "--exc-c14n", "-"]
        done = subprocess.run(command, input=octets, capture_output=True, check=False, timeout=30)
        if done.stdout.rstrip(b"\n") != octets:
            raise Found("xmllint's canonical form is another", octets)
    return "hundreds"


def fuzz_callbacks(chance: random.Random) -> str:
    raw = text(chance)
    try:
        parse_callbacks(raw)
        said = Callback(
            id="cb_1", kind="completion", session="ses_1", agent="a", status="completed", text=raw
        )
        other = Callback(
            id="itm_1", kind="query", session="ses_2", agent="b", title=text(chance), text=text(chance)
        )
        rendered = render_callbacks([said, other])
        back = parse_callbacks(rendered)
    except Exception as error:
        raise Found(f"{type(error).__name__}: {error}", raw) from error
    if [callback.session for callback in back] != ["ses_1", "ses_2"]:
        raise Found("a text opens or closes a callback", rendered)
    if back[0].text != raw:
        raise Found("a text does not come back", raw)
    return "texts"


def fuzz_output(chance: random.Random) -> str:
    raw = text(chance)
    for lines in (False, True):
        shown = visible(raw, lines=lines)
        if any(acts(c) for c in shown if not (lines and c in "\n\t")) or "\x1b" in shown or "\u202e" in shown:
            raise Found("something that acts on a terminal is printed", raw)
    return "texts"


def fuzz_ledger(chance: random.Random, *, server: str) -> str:
    number = chance.randrange(2**32)
    client = connect(server, check=False)
    try:
        play(client, number, steps=chance.choice([40, 80, 160]))
    except Broken as error:
        raise Found(str(error), str(number)) from error
    finally:
        client.close()
    return "plays"


def fuzz_simulated(chance: random.Random, *, server: str) -> str:
    """The simulated server against a real one: twenty sequences of random commands, or a play of the ledger."""
    number = chance.randrange(2**32)
    client = connect(server, check=False)
    mirrored = Mirrored(client)
    try:
        if chance.random() < 0.5:
            whole_play(mirrored, number, steps=chance.choice([20, 40, 80]))
            return "plays"
        for offset in range(20):
            random_commands(mirrored, number + offset)
        return "scores of sequences"
    except (Broken, Differs) as error:
        raise Found(str(error), str(number)) from error
    finally:
        client.close()


@contextmanager
def a_server() -> Iterator[str]:
    """The URL of a server that keeps nothing."""
    socket_dir = make_socket_dir()
    with tempfile.TemporaryDirectory() as folder:
        server = ValkeyProcess(Path(folder), socket_dir, durable=False)
        server.start()
        try:
            yield server.url
        finally:
            server.stop()
            remove_socket_dir(socket_dir)


FUZZERS: dict[str, Fuzzer] = {
    "readers": fuzz_readers,
    "encoder": fuzz_encoder,
    "callbacks": fuzz_callbacks,
    "output": fuzz_output,
}
#: Of the time, how much each gets.
SHARES = {
    "readers": 0.4,
    "encoder": 0.15,
    "callbacks": 0.1,
    "output": 0.05,
    "ledger": 0.15,
    "simulated": 0.15,
}


def main() -> None:
    """Run them all; exit code 1 on the first difference."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    sys.stdout.write(f"seed {options.seed}, {options.seconds:g} s\n")
    with a_server() as server:
        on_server = {
            "ledger": partial(fuzz_ledger, server=server),
            "simulated": partial(fuzz_simulated, server=server),
        }
        fuzz({**FUZZERS, **on_server}, options)


def fuzz(fuzzers: dict[str, Fuzzer], options: argparse.Namespace) -> None:
    """Run these; exit code 1 on the first difference."""
    for name, fuzzer in fuzzers.items():
        chance, counts = random.Random(f"{options.seed} {name}"), Counter[str]()
        ends_at = time.monotonic() + options.seconds * SHARES[name]
        while time.monotonic() < ends_at:
            try:
                counts[fuzzer(chance)] += 1
            except Found as found:
                octets = (
                    found.args[1]
                    if isinstance(found.args[1], bytes)
                    else found.args[1].encode("utf-8", "surrogatepass")
                )
                sys.stdout.write(
                    f"{name}: {found.args[0]}\ninput in base64: {base64.b64encode(octets).decode()}\n"
                )
                sys.exit(1)
        sys.stdout.write(
            f"{name}: {', '.join(f'{number:,} {what}' for what, number in sorted(counts.items()))}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
