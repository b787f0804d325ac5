"""Actions of the console: the client's methods, each noted in the audit trail with who did it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.agents.registry import OPERATOR
from orchestrator.audit.store import AuditStore
from orchestrator.audit.transfer import export as write_trail
from orchestrator.console.access import Person
from orchestrator.console.sessions import MOST_AT_ONCE, Filter, matching
from orchestrator.console.stack import Stack
from orchestrator.display.text import counted
from orchestrator.errors import InputError, OrchestraError, ServerUnavailable
from orchestrator.ids import new_message_id, shard_of
from orchestrator.ledger.concurrency import Kind, Most
from orchestrator.ledger.model import CLOSED, SessionState
from orchestrator.log import get_logger
from orchestrator.messages.factory import Thread
from orchestrator.router.deadletters.replay import Replays
from orchestrator.router.deadletters.store import DeadLetter, DeadLetters
from orchestrator.streams import RedisStreams, StreamId

#: A form as it was sent: the values of each field.
Form = Mapping[str, list[str]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Record what came of an action on one thing."""

    sentence: str
    done: bool = True
    #: The session concerned; else empty.
    session: str = ""


def run(stack: Stack, person: Person, action: str, form: Form) -> list[Outcome]:
    """Carry out an action; of several things, what came of each.

    Raises:
        InputError: there is no such action, or a field is missing.
        OrchestraError: it is refused.
    """
    act = ACTIONS.get(action)
    if act is None:
        raise InputError(f"the console has no action {action!r}")
    outcomes = act(stack, person, form)
    for one in outcomes:
        if one.done:
            note(stack, person, action, one)
    return outcomes


def note(stack: Stack, person: Person, action: str, outcome: Outcome) -> None:
    """Write into the audit trail who did what, as a message of the operator, who signs it."""
    get_logger().info("console-action", action=action, by=person.name, session=outcome.session)
    note = stack.parts.message_factory.message(
        sender=OPERATOR,
        recipient="router",
        text=f"{person.name} in the console: {action}: {outcome.sentence}",
        # A conversation of its own: without a chain it would be refused in one that has begun.
        thread=Thread(correlation=new_message_id()),
    )
    shard = shard_of(outcome.session) if outcome.session else 0
    RedisStreams(stack.parts.redis).publish(StreamId(shard, note.type, note.priority), note.data)


def _one(form: Form, name: str) -> str:
    values = form.get(name, [])
    if not values or not values[0].strip():
        raise InputError(f"the form lacks {name.replace('_', ' ')}")
    return values[0]


def _said(form: Form, name: str) -> str:
    return (form.get(name) or [""])[0].strip()


def _resume(stack: Stack, _person: Person, form: Form) -> list[Outcome]:
    session = _one(form, "session")
    stack.client.resume(session, _one(form, "prompt"), key=_said(form, "key") or None)
    return [Outcome(sentence=f"session {session} was given another prompt and will run", session=session)]


def _stop(stack: Stack, person: Person, form: Form) -> list[Outcome]:
    return [_end(stack, person, _one(form, "session"), _said(form, "reason"))]


def _delete(stack: Stack, person: Person, form: Form) -> list[Outcome]:
    session = _one(form, "session")
    if _said(form, "confirm") != "yes":
        raise InputError(f"tick the box to delete session {session} and everything below it")
    verdict = stack.client.delete(session, f"deleted by {person.name} in the console")
    words = {"ended": "is deleted", "asked": "is deleted once its run has stopped"}
    sentence = f"session {session} {words.get(verdict.outcome, 'had ended before')}"
    return [Outcome(sentence=sentence, session=session)]


def _end(stack: Stack, person: Person, session: str, reason: str) -> Outcome:
    verdict = stack.client.stop(
        session, f"{reason} ({person.name})" if reason else f"stopped by {person.name}"
    )
    words = {"ended": "is stopped", "asked": "was asked to stop; it ends within the grace period"}
    below = f"; {counted(verdict.below, 'session')} below it asked to stop" if verdict.below else ""
    sentence = f"session {session} {words.get(verdict.outcome, 'had ended before')}{below}"
    return Outcome(sentence=sentence, session=session)


def _reply(stack: Stack, _person: Person, form: Form) -> list[Outcome]:
    question = _one(form, "question")
    session = stack.client.reply(question, _one(form, "text"))
    return [
        Outcome(sentence=f"question {question} has its reply; session {session} continues", session=session)
    ]


def _approve(stack: Stack, person: Person, form: Form) -> list[Outcome]:
    done = stack.client.approve(
        _one(form, "approval"), _said(form, "comment"), digest=_one(form, "digest"), by=person.name
    )
    return [
        Outcome(sentence=f"approved: {done.tool} of {done.agent} in {done.session}", session=done.session)
    ]


def _deny(stack: Stack, person: Person, form: Form) -> list[Outcome]:
    done = stack.client.deny(_one(form, "approval"), _said(form, "comment"), by=person.name)
    return [Outcome(sentence=f"denied: {done.tool} of {done.agent} in {done.session}", session=done.session)]


def _fork(stack: Stack, _person: Person, form: Form) -> list[Outcome]:
    session, at = _one(form, "session"), _one(form, "at")
    prompt, key = _said(form, "prompt") or None, _said(form, "key") or None
    made = stack.client.fork(session, at, prompt=prompt, key=key)
    return [Outcome(sentence=f"session {made.id} begins where run {at} of {session} began", session=made.id)]


def _each(
    stack: Stack, form: Form, act: Callable[[str], Outcome], fits: Callable[..., bool]
) -> list[Outcome]:
    only = Filter.of({name: values[0] for name, values in form.items() if values})
    found = [one for one in matching(stack, only, limit=MOST_AT_ONCE).sessions if fits(one)]
    expected = _one(form, "count")
    if str(len(found)) != expected:
        raise InputError(
            f"{counted(len(found), 'session')} match now, and {expected} were shown: look at them again"
        )
    outcomes = []
    for one in found:
        try:
            outcomes.append(act(one.id))
        except (OrchestraError, ServerUnavailable) as error:
            outcomes.append(Outcome(sentence=f"session {one.id}: {error}", done=False, session=one.id))
    return outcomes


def _stop_many(stack: Stack, person: Person, form: Form) -> list[Outcome]:
    reason = _said(form, "reason")
    return _each(stack, form, lambda name: _end(stack, person, name, reason), lambda one: may_stop(one.state))


def _resume_many(stack: Stack, person: Person, form: Form) -> list[Outcome]:
    prompt = _one(form, "prompt")

    def act(name: str) -> Outcome:
        return _resume(stack, person, {"session": [name], "prompt": [prompt]})[0]

    return _each(stack, form, act, lambda one: may_resume(one.state))


def may_stop(state: SessionState) -> bool:
    """Return True for a session that a stop would end."""
    return state not in CLOSED and state is not SessionState.FINISHED


def may_resume(state: SessionState) -> bool:
    """Return True for a session that takes another prompt."""
    return state not in CLOSED and state not in (SessionState.SCHEDULED, SessionState.DAMAGED)


def _pause(stack: Stack, _person: Person, form: Form) -> list[Outcome]:
    kind, name, _ = _paused_thing(stack, form)
    changed = stack.parts.concurrency.pause(kind, name)
    return [Outcome(sentence=f"{kind} {name} {'is paused' if changed else 'was paused already'}")]


def _unpause(stack: Stack, _person: Person, form: Form) -> list[Outcome]:
    kind, name, agents = _paused_thing(stack, form)
    changed = stack.parts.concurrency.unpause(kind, name, agents=agents)
    _notify(stack, agents)
    return [Outcome(sentence=f"{kind} {name} {'goes on' if changed else 'was not paused'}")]


def _limit(stack: Stack, _person: Person, form: Form) -> list[Outcome]:
    concurrency, (most, words) = stack.parts.concurrency, _most(form)
    if root := _said(form, "root"):
        _notify(stack, concurrency.limit_tree(stack.parts.ledger.session(root).root, most))
        return [Outcome(sentence=f"the tree of {root} {words}", session=root)]
    if _said(form, "trees"):
        _notify(stack, concurrency.limit_trees(most))
        return [Outcome(sentence=f"each tree without a limit of its own {words}")]
    agent = _agent(stack, form)
    concurrency.limit_agent(agent, most)
    _notify(stack, [agent])
    return [Outcome(sentence=f"agent {agent} {words}")]


def _most(form: Form) -> tuple[Most, str]:
    """Return a limit, and what it says of what it limits."""
    text = _one(form, "most").strip()
    if text == "none":
        return "none", "may have any number of runs at work"
    if text == "default":
        return "default", "has the limit of its definition, or of the settings"
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError(f"{text!r} is not a limit: give a number, none or default")
    return int(text), f"may have {counted(int(text), 'run')} at work at once"


def _notify(stack: Stack, agents: Sequence[str]) -> None:
    """Tell workers that runs may begin now."""
    try:
        stack.parts.wake(agents)
    except ServerUnavailable as error:
        get_logger().warning("console-cannot-notify", agents=", ".join(agents), error=str(error))


def _paused_thing(stack: Stack, form: Form) -> tuple[Kind, str, list[str]]:
    """Return what is to be paused or to go on, its name, and the agents concerned."""
    queue = _said(form, "queue")
    if not queue:
        return "agent", (agent := _agent(stack, form)), [agent]
    agents = [one.name for one in stack.parts.agents.all() if one.queue == queue and not one.external]
    if not agents:
        raise InputError(f"no agent of this stack has the queue {queue!r}")
    return "queue", queue, agents


def _agent(stack: Stack, form: Form) -> str:
    agent = _one(form, "agent")
    record = stack.parts.agents.get(agent)
    if record is None or record.external:
        raise InputError(f"no agent {agent!r} runs on a worker of this stack")
    return agent


def _replay(stack: Stack, _person: Person, form: Form) -> list[Outcome]:
    replays = Replays(stack.parts)

    def act(dead: DeadLetter) -> Outcome:
        done = replays.replay(dead)
        if done is None:
            return Outcome(sentence=f"{dead.id} is gone already", done=False)
        return Outcome(sentence=f"dead letter {dead.id} was replayed as {done.how} {done.id}")

    return _of_letters(stack, form, act)


def _drop(stack: Stack, _person: Person, form: Form) -> list[Outcome]:
    replays = Replays(stack.parts)

    def act(dead: DeadLetter) -> Outcome:
        gone = replays.drop(dead)
        return Outcome(
            sentence=f"dead letter {dead.id} {'was dropped' if gone else 'is gone already'}", done=gone
        )

    return _of_letters(stack, form, act)


def _of_letters(stack: Stack, form: Form, act: Callable[[DeadLetter], Outcome]) -> list[Outcome]:
    letters = DeadLetters(stack.parts.redis, shards=stack.settings.shards)
    names = form.get("dead", [])
    if not names:
        raise InputError("choose at least one dead letter")
    outcomes = []
    for name in names[:MOST_AT_ONCE]:
        dead = letters.get(name)
        try:
            outcomes.append(
                act(dead) if dead is not None else Outcome(sentence=f"{name} is gone already", done=False)
            )
        except OrchestraError as error:
            outcomes.append(Outcome(sentence=f"{name}: {error}", done=False))
    return outcomes


def _repair(stack: Stack, _person: Person, _form: Form) -> list[Outcome]:
    before, after = stack.repair()
    left = {one.key for one in after.findings}
    bad = [one for one in before.findings if one.severity in ("break", "stuck")]
    repaired = sum(one.key not in left for one in bad)
    outcomes = [Outcome(sentence=f"repaired: {repaired} of {counted(len(bad), 'finding')}")]
    for one in bad[:MOST_AT_ONCE]:
        prefix = "" if one.session in one.message else f"{one.session}: "
        done, what = one.key not in left, f"{prefix}{one.message} ({one.rule})"
        outcomes.append(
            Outcome(sentence=f"repaired: {what}" if done else what, done=done, session=one.session)
        )
    return outcomes


def _verify(stack: Stack, person: Person, _form: Form) -> list[Outcome]:
    begun = stack.verify(person.name)
    sentence = "the audit trail is being verified; this page says what comes of it"
    return [Outcome(sentence=sentence if begun else "it is being verified already", done=begun)]


def export(stack: Stack, person: Person, path: Path) -> int:
    """Write the whole audit trail to a file; return how many messages it has.

    Raises:
        AuditError: there is none, or it cannot be read.
    """
    with closing(AuditStore(stack.settings.audit_database, read_only=True)) as store:
        messages = write_trail(store, path)
    note(
        stack,
        person,
        "export",
        Outcome(sentence=f"exported {counted(messages, 'message')} of the audit trail"),
    )
    return messages


ACTIONS: Final[Mapping[str, Callable[[Stack, Person, Form], list[Outcome]]]] = {
    "resume": _resume,
    "stop": _stop,
    "delete": _delete,
    "reply": _reply,
    "approve": _approve,
    "deny": _deny,
    "fork": _fork,
    "stop-many": _stop_many,
    "resume-many": _resume_many,
    "pause": _pause,
    "unpause": _unpause,
    "limit": _limit,
    "replay": _replay,
    "drop": _drop,
    "repair": _repair,
    "verify": _verify,
}
