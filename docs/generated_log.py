"""The table of log events, from the calls in the source; one that nobody has explained fails `make docs`."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from generated_fields import Undocumented

_LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
}
_LOGGERS: Final = frozenset({"_log", "log", "get_logger()"})
#: Event → what has happened.
MEANINGS: Final = {
    "account-not-written": "The account of a run's steps could not be written for its next attempt.",
    "act-failed": "A script of the router failed for a message; the message is tried again or is dead.",
    "agent-ended-by-force": "An agent did not stop when it was asked to; its process was ended.",
    "agent-failed": "An agent raised an error; `text` says that the error has a text which is encrypted.",
    "agent-not-signed": "The record of an agent could not be signed or verified.",
    "agent-unknown": "A run is for an agent that nobody has registered.",
    "agents-announced": "A worker has registered its agents.",
    "answer-cut-off": "An answer was longer than allowed.",
    "answer-failed": "A call could not be answered with the failure of its run.",
    "at-work-miscounted": "The count of runs at work was wrong, and was corrected.",
    "audit-changed": "Somebody has changed the audit database; nothing more is signed in it.",
    "audit-head-not-kept": "The head of the trail could not be written to its file.",
    "audit-not-signed": "The operator's key is missing, so that the trail is not signed.",
    "audit-not-written": "The audit database takes no rows now; they are tried again.",
    "audit-poison": "A message ended every writer that read it; it is kept unread.",
    "beat-failed": "Renewing a lease or a timer failed unexpectedly.",
    "body-not-kept": "A stored body was gone before the trail had it.",
    "callback-failed": "A callback of an agent's call raised an error.",
    "callback-without-caller": "A callback came for a call that nobody waits for.",
    "claim-lost": "A worker has lost the run that it worked on.",
    "close-failed": "A child of a closed session could not be closed; it is tried again.",
    "console-action": "Somebody has acted through the console.",
    "console-cannot-examine": "The console could not examine the stack for its first page; it tries again.",
    "console-cannot-notify": "The console could not notify the workers of agents; the reaper does.",
    "console-examination-failed": "The examination for the console's first page failed unexpectedly.",
    "console-listens": "The console serves its pages.",
    "console-verification-failed": "A verification of the audit trail that somebody asked the console for failed unexpectedly.",
    "consumer-silent": "A worker's Celery consumer does not take messages any more.",
    "dead-letters-dropped": "Dead letters were dropped, because there were too many or they were too old.",
    "dead-process-not-reported": "The death of a worker process could not be reported; its lease runs out.",
    "end-not-reported": "The end of a session could not be written as a message.",
    "end-not-written": "The end of a run could not be committed.",
    "escalation-not-delivered": "An escalation found nobody who takes it.",
    "escalation-not-signed": "An escalation could not be signed.",
    "event-not-written": "An event could not be written to the file of a run.",
    "events-not-sent": "Events for Flower could not be sent.",
    "facts-not-read": "A message could not be read for the trail; its bytes are kept.",
    "flush-failed": "A session could not be resumed now; it is tried again.",
    "gateway-connection-broken": "A program of a run has closed its connection.",
    "gateway-failed": "A request of a program of a run failed unexpectedly.",
    "held-up": "A service cannot work, because a key was overwritten or a right is missing; it tries again.",
    "intake-failed": "A message could not be looked at; it is dead.",
    "item-not-genuine": "A record in the ledger has no valid proof and was refused.",
    "item-not-opened": "A message could not be decrypted.",
    "key-overwritten": "Somebody has put another type into a key of the stack.",
    "key-set-aside": "Content of another program was moved out of the way.",
    "keys-not-updated": "The list of public keys could not be read again.",
    "lease-lost": "The reaper has taken a run from a worker that gave no sign of life.",
    "ledger-away": "Redis does not answer a worker; its run is taken up later.",
    "live-text-not-written": "Live text could not be written; nothing depends on it.",
    "memory-left-out": "A conversation was shortened to fit into the model's context.",
    "message-dead": "A message became a dead letter.",
    "message-duplicate": "A message had come before and was dropped.",
    "message-not-understood": "The broker had something that is no message of ours.",
    "message-parked": "A message waits for its next attempt, or for other tasks.",
    "message-quoted": "An answer quotes another message.",
    "messages-dead": "More messages became dead letters than are named one by one.",
    "metrics-not-kept": "The exporter cannot write how far it has read.",
    "metrics-not-read": "The exporter cannot read the ledger or the trail; `/metrics` answers 503.",
    "metrics-read-anew": "The file of the exporter is damaged; the trail is read from its beginning.",
    "no-probe": "The socket of the health check could not be made.",
    "not-attested": "A record could not be signed.",
    "notification-dead": "A notification was given up and is a dead letter.",
    "notification-failed": "A target has not taken a notification; it is tried again.",
    "notification-incomplete": "A notification lacks what could not be read in the ledger.",
    "notify-failed": "Workers could not be told of runs; the reaper tells them again.",
    "outbox-over-quota": "An external program sends more than its quota and rests.",
    "outbox-unreadable": "An entry of an outbox could not be read.",
    "output-not-written": "What an agent printed could not be kept.",
    "permission-denied": "A command-line agent was denied the use of a tool.",
    "process-died": "A process of a worker died while it worked on a run.",
    "redis-away": "Redis does not answer; it is tried again.",
    "reindexed": "The indexes of a session were put right.",
    "renewal-failed": "A lease could not be renewed now; it is tried again.",
    "repair-failed": "The doctor could not repair a session.",
    "replicas-behind": "Fewer replicas than wanted have what was written.",
    "reply-too-late": "A reply came when nobody waited for it any more.",
    "report-not-signed": "A report of a dead letter could not be signed.",
    "report-too-large": "The report of an end was larger than a message may be.",
    "revocations-not-signed": "The list of revoked keys has no valid signature.",
    "revocations-rolled-back": "Somebody has put an older list of revoked keys back.",
    "run-claimed": "A worker has taken a run.",
    "run-damaged": "A run cannot be read and is not handed out.",
    "run-ended": "A run has ended, or waits: `verdict` says how.",
    "run-not-claimed": "A run could not be taken.",
    "run-parked": "A run waits for a provider without its slot.",
    "run-released": "A worker process ended; its run is given to another worker.",
    "run-refused": "A run was refused to a worker: it was taken or has ended.",
    "run-sleeps": "A run waits until a time without its slot.",
    "run-waits-for-user": "A run waits for a person.",
    "runs-given-back": "A run took longer than those of its agent did; the runs that its slot held with it go to others.",
    "scheduled-session-begun": "The time of a scheduled session has come.",
    "settings-disagree": "A setting differs from that of the other parts of the stack.",
    "slot-lent": "A run that waits for a child lends its slot.",
    "slot-not-lent": "A slot could not be lent.",
    "spans-dropped": "The collector was away for so long that spans were dropped.",
    "spans-not-sent": "The collector takes no spans now; they are sent later.",
    "step-failed": "A durable step failed; `left` says how many tries are left.",
    "steps-left-out": "An attempt did not ask for steps that an earlier one had recorded.",
    "steps-replaced": "Another step was asked for than was recorded; what followed was dropped.",
    "stop-failed": "A session could not be stopped now; it is tried again.",
    "submission-refused": "A Celery message begins no session.",
    "sweep-failed": "A part of the reaper's sweep failed; the others went on.",
    "swept": "The reaper has done something; the fields count what.",
    "task-revoked": "A session was stopped by Celery's `revoke`.",
    "timers-not-read": "The timers of a shard could not be read.",
    "unknown-event": "An entry among the ledger's events is of another version or program.",
    "unknown-timer": "A timer is of another version or program.",
    "upkeep-failed": "A worker could not register its agents again.",
    "version-refused": "A run began with another version of its agent and may not go on with this one.",
    "watchdog-look-failed": "A worker could not look at its consumer.",
    "worktree-not-removed": "A worktree could not be removed.",
    "worktree-removed": "A worktree of a session that has ended was removed.",
}
#: Function that writes an event which it is given.
_PASSED_ON: Final = frozenset({"_log_once"})


def log_lines() -> str:
    """One row for each event."""
    import orchestrator

    root = Path(str(orchestrator.__file__)).parent
    levels: dict[str, set[str]] = defaultdict(set)
    fields: dict[str, dict[str, None]] = defaultdict(dict)
    for path in sorted(root.rglob("*.py")):
        for event, level, given in events_in(ast.parse(path.read_text(encoding="utf-8"))):
            levels[event].add(level)
            fields[event].update(dict.fromkeys(given))
    if different := set(levels) ^ set(MEANINGS):
        raise Undocumented(f"log event: {', '.join(sorted(different))}")
    rows = ["| event | level | fields | what has happened |", "| --- | --- | --- | --- |"]
    for event, meaning in sorted(MEANINGS.items()):
        named = ", ".join(f"`{name}`" for name in fields[event])
        rows.append(f"| `{event}` | {', '.join(sorted(levels[event]))} | {named} | {meaning} |")
    return "\n".join(rows)


def events_in(tree: ast.AST) -> Iterator[tuple[str, str, list[str]]]:
    """Yield event, level and fields of each call of a logger."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
            continue
        passed_on = call.func.attr in _PASSED_ON
        writes = call.func.attr in _LEVELS and ast.unparse(call.func.value) in _LOGGERS
        if not (passed_on or writes):
            continue
        fields = [keyword.arg for keyword in call.keywords if keyword.arg and keyword.arg != "exc_info"]
        if passed_on:
            fields = ["database", "reason"]
        level = "error" if passed_on else _LEVELS[call.func.attr]
        for event in _texts(call.args[0], tree):
            if "%" not in event:  # a line for a library's logger
                yield event, level, fields


def _texts(argument: ast.expr, tree: ast.AST) -> list[str]:
    """Return the texts that an argument may be: one, the two of a condition, or what its name was set to."""
    match argument:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp(body=ast.Constant(value=str(one)), orelse=ast.Constant(value=str(other))):
            return [one, other]
        case ast.Name(id=name):
            found: list[str] = []
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and any(
                    isinstance(t, ast.Name) and t.id == name for t in node.targets
                ):
                    found += _texts(node.value, tree)
                if (
                    isinstance(node, ast.keyword | ast.arg)
                    and node.arg == name
                    and isinstance(node, ast.keyword)
                ):
                    found += _texts(node.value, tree)
            return found
    return []
