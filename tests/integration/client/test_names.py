"""Sessions by the beginning of their ids and as @last, names that were nearly right, and what shells complete."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import redis
from click.shell_completion import CompletionItem, ShellComplete

from orchestrator.cli import main, names
from orchestrator.client.client import Client
from orchestrator.redisdb import ledger_keys
from tests.commands import Orchestra, place
from tests.kit import Kit
from tests.waiting import wait_until

#: Every command that takes a session and only reads.
READING = ("tree", "logs", "why", "budget", "approvals")

Complete = Callable[..., list[CompletionItem]]


@pytest.fixture
def root(kit: Kit, lead: None) -> str:
    """A session with two children."""
    return kit.begin("lead", "the whole")


@pytest.fixture
def complete(kit: Kit) -> Complete:
    """What a shell is offered for the last word of a command line on the kit's stack."""

    def ask(*words: str) -> list[CompletionItem]:
        place = ["--redis-url", str(kit.settings.redis_url), "--data", str(kit.settings.data)]
        shell = ShellComplete(main, {}, "orchestra", "_ORCHESTRA_COMPLETE")
        return shell.get_completions([*words[:-1], *place], words[-1])

    return ask


def _values(found: list[CompletionItem]) -> set[str]:
    return {item.value for item in found}


def _unique(session: str, others: list[str]) -> str:
    return next(
        session[:length] for length in range(6, 31) if not any(o.startswith(session[:length]) for o in others)
    )


def test_a_session_is_named_by_the_beginning_of_its_id(kit: Kit, orchestra: Orchestra, root: str) -> None:
    """Children, too; with or without the `ses_`; and what is printed has the whole id."""
    first, second = (child.id for child in kit.children(root))
    for session, others in ((root, [first, second]), (first, [root, second])):
        beginning = _unique(session, others)
        for word in (beginning, beginning.removeprefix("ses_")):
            assert kit.document("why", word)["session"] == session
        for command in READING:
            assert orchestra(command, beginning).stdout == orchestra(command, session).stdout
    assert kit.document("stop", _unique(first, [root, second]))["session"] == first


def test_the_last_root_session_is_called_last(kit: Kit, orchestra: Orchestra, root: str) -> None:
    assert kit.document("why", "@last")["session"] == root
    other = orchestra("submit", "solo", "x").stdout.strip()
    assert kit.document("why", "@last")["session"] == other
    kit.play(other)
    assert orchestra("result", "@last").stdout == "x\n"
    assert orchestra("agents", "limit", "@last", "3").stdout == f"tree {other}, 0 of at most 3 at work\n"


def test_there_may_be_no_last_session(orchestra: Orchestra) -> None:
    done = orchestra("stop", "@last")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: there is no last session, as there is none yet; submit one: ")


def test_a_beginning_of_several_ids_is_refused_and_lists_them(
    kit: Kit, orchestra: Orchestra, root: str
) -> None:
    """Nothing is stopped by it."""
    done = orchestra("stop", "ses_00")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: 3 session ids begin with 'ses_00': ses_00")
    assert done.stderr.endswith("; give more of the id\n")
    for session in (root, *(child.id for child in kit.children(root))):
        assert f"{session} ({kit.ledger.session(session).agent})" in done.stderr
        assert kit.ledger.session(session).ended_ms == 0


def test_what_is_no_beginning_is_refused_as_it_was_typed(orchestra: Orchestra, root: str) -> None:
    """Also what would be a pattern to Redis."""
    absent = "ses_ff"
    for word in (absent, "ses_*", "ses_00?", root.upper(), root + "0", "no-such"):
        done = orchestra("tree", word)
        assert done.exit_code == 2
        assert done.stderr.startswith(f"Error: no session '{word}' is in this ledger; ")


def test_records_of_a_session_do_not_make_its_beginning_ambiguous(
    kit: Kit, orchestra: Orchestra, root: str
) -> None:
    assert kit.redis.keys(f"{ledger_keys.session(root)}:*")
    assert kit.ledger.beginning_with(root[:20]) == [root]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sesions",), "there is no command 'sesions'; did you mean 'sessions'?"),
        (("dlq", "lst"), "there is no command 'lst'; did you mean 'list'?"),
        (("zzz",), "there is no command 'zzz'\n"),
        (("submit", "sollo", "x"), "did you mean 'solo'?"),
        (("agents", "pause", "sollo"), "did you mean 'solo'?"),
        (("agents", "withdraw", "sollo"), "did you mean 'solo'?"),
    ],
)
def test_names_that_were_nearly_right(arguments: tuple[str, ...], words: str, kit: Kit, solo: None) -> None:
    done = kit.orchestra(*arguments)
    assert done.exit_code != 0
    assert words in done.stderr


def test_shells_complete_sessions_and_agents(kit: Kit, complete: Complete, client: Client, root: str) -> None:
    children = {child.id for child in kit.children(root)}
    assert _values(complete("tree", "ses_")) == {root}, "roots only, while nothing tells them apart"
    assert _values(complete("tree", "ses_00")) == {root, *children}
    assert _values(complete("tree", root[:25])) == {root}
    assert _values(complete("tree", root[4:25])) == {root[4:]}
    assert _values(complete("result", "@")) == {"@last"}
    assert _values(complete("tree", "ses_*")) == set()
    assert _values(complete("submit", "")) == {"lead", "solo"}
    assert _values(complete("agents", "pause", "so")) == {"solo"}
    (item,) = complete("tree", root[:25])
    assert item.help == "lead, idle: the whole"


def test_what_shells_are_shown_of_others_is_harmless(complete: Complete, client: Client, solo: None) -> None:
    """A newline would begin another completion, and an escape act on the terminal."""
    session = client.submit("solo", "x", title="a\n\x1b]0;owned\x07").id
    (item,) = complete("tree", session[:25])
    assert item.help == r"solo, pending: a\n\x1b]0;owned\x07"


@pytest.fixture
def hung() -> Iterator[float]:
    """Nothing that connects comes back; how long a completion may take at most."""
    with mock.patch.object(names, "open_stack", side_effect=lambda *_: time.sleep(30)):
        yield names.COMPLETE_S + 1


def test_completion_takes_a_second_at_most(complete: Complete, hung: float) -> None:
    begun = time.monotonic()
    assert complete("tree", "ses_") == []
    assert time.monotonic() - begun < hung


def test_completion_never_raises(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise redis.ConnectionError("gone")

    monkeypatch.setattr(names, "open_stack", broken)
    assert complete("tree", "ses_") == complete("submit", "") == []
    shell = ShellComplete(main, {}, "orchestra", "_ORCHESTRA_COMPLETE")
    assert shell.get_completions(["tree", "--redis-url", "ftp://nowhere"], "ses_") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one line of the documentation loads it."""
    if shell == "bash":  # click asks which bash there is
        monkeypatch.setattr("click.shell_completion.BashComplete._check_version", staticmethod(lambda: None))
    monkeypatch.setenv("_ORCHESTRA_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit) as ended:
        main(prog_name="orchestra")
    assert ended.value.code == 0
    assert f"_ORCHESTRA_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_a_shell_is_answered_by_a_process_of_its_own(kit: Kit, root: str) -> None:
    """As bash asks: the words so far, and which of them is completed. On a busy machine people press Tab once more."""
    asked = {"COMP_WORDS": f"orchestra tree {root[:25]}", "COMP_CWORD": "2"}

    def answer() -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **asked, **place(kit.settings), "_ORCHESTRA_COMPLETE": "bash_complete"},
        )
        return done.stdout, done.stderr

    wait_until(lambda: answer() == (f"plain,{root}\n", ""), "the session's id")
