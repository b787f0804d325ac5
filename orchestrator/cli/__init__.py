"""The command `orchestra`: one click group behind `orchestra`, `python -m orchestrator` and `celery orchestra`.

Every `celery …` call loads this module, so a sub-command is imported only when it is run. One that is
added is a line in ``SECTIONS`` and a module beside this one.
"""

from __future__ import annotations

import errno
import io
import sys
import traceback
from importlib import import_module
from typing import Any

import click

from orchestrator.cli.exit_codes import Exit, Failed, NoAnswer, NotYet, Refused
from orchestrator.cli.options import SuggestingGroup
from orchestrator.cli.output import say
from orchestrator.errors import NoReply, NoStack, OrchestraError, ServerUnavailable, SessionFailed

#: Heading of the help → sub-command → (module beside this one, what it does), in the order of the help.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Begin": {
        "demo": ("demo", "Review a source tree with the bundled agents; needs no set-up."),
        "init": ("init", "Write a project that is ready to run."),
        "up": ("up", "Run the whole stack in this terminal."),
    },
    "Work and answers": {
        "submit": ("submit", "Give an agent a prompt."),
        "plan": ("plan", "Have a plan of assignments carried out."),
        "result": ("submit", "Print the answer of a session."),
        "resume": ("control", "Give a session another prompt."),
        "fork": ("control", "Begin a new tree where a run of a session began."),
        "stop": ("control", "Stop a session and, by its policy, its tree."),
        "delete": ("control", "Delete a session; a tombstone with its counts stays."),
        "unpin": ("control", "Let any version of its agent go on with a session."),
        "token": ("access", "Let a plain Celery message begin one session."),
    },
    "Look": {
        "watch": ("watch", "Follow a tree of sessions live."),
        "sessions": ("sessions", "List the root sessions."),
        "tree": ("sessions", "Show a session and everything below it."),
        "logs": ("sessions", "Show what happened in a session, in order."),
        "why": ("doctor", "Say what a session waits for."),
        "budget": ("sessions", "Show what a session may spend, and who spent it."),
        "agents": ("agents", "List the registered agents."),
        "url": ("access", "Print the address of the stack."),
        "worktrees": ("worktrees", "List and remove the git worktrees of sessions."),
    },
    "What agents ask you": {
        "questions": ("questions", "List what agents ask you."),
        "reply": ("questions", "Answer a question of an agent."),
        "approvals": ("questions", "List what waits for your yes or no."),
        "approve": ("questions", "Say yes to what an agent asks."),
        "deny": ("questions", "Say no to what an agent asks."),
    },
    "For programs that an agent started": {
        "raise": ("session_tools", "Tell the caller of the session that started this program."),
        "delegate": ("session_tools", "Launch a child of the session that started this program."),
        "ask": ("session_tools", "Ask the caller of the session that started this program."),
        "mcp": ("mcp", "Serve MCP for the session that started this program, or for you."),
    },
    "Operate": {
        "doctor": ("doctor", "Prove the promise over all live trees, or name what breaks it."),
        "pause": ("limits", "Let no run of an agent or a queue begin."),
        "unpause": ("limits", "Let the runs of an agent or a queue begin again."),
        "limit": ("limits", "Say how many runs of an agent or a tree may be at work at once."),
        "dlq": ("dlq", "List, show, replay and drop dead letters."),
        "notifications": (
            "notifications",
            "Try notifications; list, retry and drop those that were given up.",
        ),
        "audit": ("audit", "Search, replay and verify the audit trail; run its writer."),
        "keys": ("keys", "Generate, list, rotate, revoke and move signing keys."),
        "acl": ("access", "Print what a part of the stack may do on its Redis."),
    },
    "Messages": {
        "send": ("send", "Publish an envelope from a file."),
        "conversation": ("conversation", "Show what was said in a conversation, as a tree."),
        "validate": ("validate", "Validate envelopes; needs no server."),
        "sign": ("sign", "Sign an envelope."),
        "verify": ("sign", "Verify the signature of an envelope."),
        "prompt": ("agents", "Print what the model of an agent reads about the protocol."),
    },
    "Services": {
        "worker": ("services", "Run one worker, for all agents or some."),
        "router": ("services", "Run one router."),
        "callbacks": ("services", "Run one callback service."),
        "reaper": ("services", "Run one reaper."),
        "notifier": ("notifications", "Run one notifier: tell a webhook or a command."),
    },
}
#: Every sub-command.
COMMANDS: dict[str, tuple[str, str]] = {
    name: command for section in SECTIONS.values() for name, command in section.items()
}


class LazyGroup(SuggestingGroup):
    """Sub-commands that are imported when they are used; their errors are one line, not a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"orchestrator.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, "raise_" if cmd_name == "raise" else cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, about) for name, (_, about) in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("interrupted", err=True)
            ctx.exit(Exit.INTERRUPTED)
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:  # noqa: BLE001  (a fault of ours has its own exit code)
            if (refusal := as_refusal(error)) is None:
                say("".join(traceback.format_exception(error)).rstrip("\n"), err=True, lines=True)
                ctx.exit(Exit.BUG)
            shown = io.StringIO()
            refusal.show(shown)
            # It may quote text of agents and messages.
            say(shown.getvalue().rstrip("\n"), err=True, lines=True)
            ctx.exit(refusal.exit_code)


def as_refusal(error: Exception) -> click.ClickException | None:
    """The error as one line that says what to do, with its exit code; None: it is a bug, and gets its traceback."""
    match error:
        case click.FileError():
            return Refused(error.format_message())
        case click.ClickException():
            return error
        case SessionFailed():
            return Failed(one_line(error))
        case TimeoutError() if error.errno is None:
            return NotYet(one_line(error))
        case NoReply():
            return NotYet(one_line(error))
        case NoStack() | ServerUnavailable():
            return NoAnswer(one_line(error))
        case OrchestraError():
            advice: str | None = one_line(error)
        case UnicodeEncodeError() if any("\ud800" <= character <= "\udfff" for character in error.object):
            advice = f"{error.object!a} is not text: Redis and XML take UTF-8 only; convert it"
        case OSError():
            advice = advice_on_file(error)
        case _:
            return advice_on_redis(error)
    return None if advice is None else Refused(advice)


def one_line(error: BaseException) -> str:
    """The sentence of an error with its line breaks folded."""
    return " ".join(str(error).split())


def advice_on_file(error: OSError) -> str | None:
    """What to say about a file that the user named, or a full disk; None for any other error."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{reason}; make room, or write to another disk"
    if error.filename is not None:
        return f"{error.filename}: {reason}; check the path, and that this user may use it"
    return None


def advice_on_redis(error: BaseException) -> click.ClickException | None:
    """What to say about an error that redis-py raised because of the server. Without redis-py loaded there is none."""
    if "redis" not in sys.modules:
        return None
    from orchestrator.redisdb.client import advice_on_refusal, is_outage, lacks_permission

    if lacks_permission(error):
        return Refused(
            f"the Redis user may not do this: {one_line(error)}; give it more, as `orchestra acl` prints it for its role"
        )
    refusal = advice_on_refusal(error)
    if refusal is not None:
        return NoAnswer(f"Redis {refusal}")
    return NoAnswer(f"Redis did not answer: {one_line(error)}; is it running?") if is_outage(error) else None


@click.group("orchestra", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="agent-orchestra", prog_name="orchestra")
def main() -> None:
    """Trees of LLM agents on Celery and Redis that never lose, double or forge a wake-up.

    Without --redis-url (or ORCHESTRA_REDIS_URL) commands talk to the stack that runs on the data folder.
    """
