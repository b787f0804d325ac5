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
from typing import Any, cast

import click

from orchestrator.cli.exit_codes import Exit, Failed, NoAnswer, NotYet, Refused
from orchestrator.cli.options import SubCommands
from orchestrator.cli.output import say
from orchestrator.errors import NoReply, NoStack, OrchestraError, ServerUnavailable, SessionFailed

#: Heading of the help → sub-command → (module beside this one, what it does), in the order of the help.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Begin": {
        "init": ("init", "Write a project that is ready to run."),
        "up": ("up", "Run the whole stack in this terminal."),
        "demo": ("demo", "Review a source tree with the bundled agents; needs no set-up."),
    },
    "Work": {
        "submit": ("submit", "Give an agent a prompt."),
        "result": ("submit", "Print the answer of a session."),
        "resume": ("control", "Give a session another prompt."),
        "stop": ("control", "Stop a session and, by its policy, its tree."),
    },
    "Look": {
        "console": ("console", "Serve the web console."),
        "open": ("console:open_", "Open the web console that runs here."),
        "watch": ("watch", "Follow a tree of sessions live."),
        "sessions": ("sessions", "List the root sessions."),
        "tree": ("sessions", "Show a session and everything below it."),
        "logs": ("sessions", "Show what happened in a session, in order."),
        "transcript": ("transcript", "Show what was said in a session, turn by turn."),
        "why": ("doctor", "Say what a session waits for."),
        "doctor": ("doctor", "Check that no callback is lost or doubled; name what is stuck."),
        "metrics": ("metrics", "Serve metrics of the stack to Prometheus."),
    },
    "Answer": {
        "questions": ("questions", "List what agents ask you, and what waits for your yes or no."),
        "reply": ("questions", "Answer a question of an agent."),
        "approve": ("questions", "Say yes to what an agent asks."),
        "deny": ("questions", "Say no to what an agent asks."),
    },
    "Groups of commands": {
        "session": ("", "Carry out plans; fork and delete sessions; show budgets and worktrees."),
        "agents": ("agents", "List, pause, limit and register agents."),
        "dlq": ("dlq", "List, show, replay and drop dead letters."),
        "audit": ("audit", "Search, replay and verify the audit trail."),
        "keys": ("keys", "Generate, list, rotate, revoke and move signing keys."),
        "message": ("", "Send, sign, verify and validate envelopes."),
        "service": ("", "Run one process of a stack in the foreground; `orchestra up` runs all of them."),
        "program": (
            "",
            "For programs that an agent started: they speak for its session while its run goes on.",
        ),
    },
}
#: Every command of the first level, with its module.
COMMANDS = {name: module for section in SECTIONS.values() for name, (module, _) in section.items()}
#: Group without a module of its own → its commands, each with its module and, if it is another, the name there.
GROUPS: dict[str, dict[str, str]] = {
    "session": {
        "plan": "submit",
        "fork": "control",
        "delete": "control",
        "budget": "sessions",
        "worktrees": "worktrees",
    },
    "message": dict.fromkeys(("send", "sign", "verify", "validate"), "message"),
    "service": {
        **dict.fromkeys(("worker", "router", "callbacks", "reaper", "notifier"), "services"),
        "audit": "services:audit_writer",
        "console": "console",
        "acl": "keys",
    },
    "program": {
        "raise": "session_tools:raise_",
        "delegate": "session_tools:launch",
        "ask": "session_tools:question",
        "mcp": "mcp",
    },
}
#: Commands that stand in a group now → where. They work under the old name for this release.
RENAMED = {
    **{name: f"agents {name}" for name in ("pause", "unpause", "limit", "prompt")},
    **{name: f"{group} {name}" for group, names in GROUPS.items() for name in names if name not in COMMANDS},
    "approvals": "questions",
}


class LazyCommands(SubCommands):
    """Commands that are imported when they are used: name → module beside this one, and the name there if it is another."""

    def __init__(self, *, modules: dict[str, str], **options: Any) -> None:
        super().__init__(**options)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module, _, name = self._modules.get(cmd_name, "").partition(":")
        command = getattr(import_module(f"orchestrator.cli.{module}"), name or cmd_name) if module else None
        return cast("click.Command | None", command)


class LazyGroup(LazyCommands):
    """All commands; their errors are one line, not a traceback."""

    renamed = RENAMED

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if modules := GROUPS.get(cmd_name):
            return LazyCommands(help=SECTIONS["Groups of commands"][cmd_name][1], modules=modules)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, help_text) for name, (_, help_text) in commands.items()])

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
    """Return the error as one line that says what to do, with its exit code; None if it is a bug, and gets its
    traceback.
    """
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
    """Return the sentence of an error with its line breaks folded."""
    return " ".join(str(error).split())


def advice_on_file(error: OSError) -> str | None:
    """Return advice on a file that the user named, or on a full disk; None for any other error."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{reason}; make room, or write to another disk"
    if error.filename is not None:
        return f"{error.filename}: {reason}; check the path, and that this user may use it"
    return None


def advice_on_redis(error: BaseException) -> click.ClickException | None:
    """Return advice on an error that redis-py raised because of the server. Without redis-py loaded there is none."""
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


@click.group(
    "orchestra", cls=LazyGroup, modules=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="agent-orchestra", prog_name="orchestra")
def main() -> None:
    """Trees of LLM agents on Celery and Redis that never lose, double or forge a wake-up.

    Without --redis-url (or ORCHESTRA_REDIS_URL) commands talk to the stack that runs on the data folder.
    """
