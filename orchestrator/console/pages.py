"""The pages of the console: what each shows, from the stack's own models."""

from __future__ import annotations

import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.agents.registry import SYSTEM_AGENTS, AgentRecord
from orchestrator.audit.heads import EitherKeys, proof_of
from orchestrator.audit.records import MessageRecord
from orchestrator.audit.text import indented
from orchestrator.client.history import Event
from orchestrator.console.actions import may_resume, may_stop
from orchestrator.console.flame import BY
from orchestrator.console.flame import flame as flame_of
from orchestrator.console.rendering import diagram
from orchestrator.console.sessions import MOST_AT_ONCE, PAGE, Filter, matching
from orchestrator.console.stack import Stack
from orchestrator.console.tree import GROUP_ROWS, ORDER, below, picture
from orchestrator.doctor import Problem
from orchestrator.doctor.examination import Step
from orchestrator.errors import NotGenuine, SessionFailed, UnknownSession
from orchestrator.ledger.model import Session, SessionState
from orchestrator.ledger.reader import SessionOutline
from orchestrator.router.deadletters.store import DeadLetters
from orchestrator.runtime.service import is_served, live_services, living_agents, living_versions
from orchestrator.streams import AUDIT_GROUP, RedisStreams, all_streams
from orchestrator.transcript.reading import being_written

#: What a template is given.
Shown = dict[str, Any]
#: Rows of a list on one page.
MOST: Final = 200
#: Dead letters of one rule on the page of all.
_EACH_RULE: Final = 50
#: Children of a session whose history is not read unless it is asked for: it takes seconds.
_LARGE: Final = 1_000
#: Queued runs that are looked at for the oldest of each agent.
_QUEUED: Final = 50
#: Messages of one diagram.
_DRAWN: Final = 60
#: Findings of the doctor that say that sessions wait for each other, and dead letters that would have made them.
_CIRCLE: Final = "wait-circle"
_WOULD_BE_CIRCLE: Final = "dependency-cycle"
#: Findings that say that a record is not what its signer signed.
_UNVERIFIED: Final = ("not-genuine", "text-altered", "claim-altered", "message-taken", "launch-taken")
#: Characters of what a model says at the moment: the last ones.
_SAID: Final = 8_000
#: Lines of an envelope that a page shows.
_XML_LINES: Final = 2_000


class NotThere(Exception):
    """There is no such page, or no longer."""


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def triage(stack: Stack, _query: Mapping[str, str]) -> Shown:
    """Return what needs a person, or that nothing does."""
    examined = stack.examined()
    questions, approvals = stack.client.questions(), stack.client.approvals()
    letters = DeadLetters(stack.parts.redis, shards=stack.settings.shards).all()
    findings = [] if examined is None else list(examined.diagnosis.findings)
    bad = [one for one in findings if one.severity in ("break", "stuck")]
    groups = defaultdict(list)
    for one in bad:
        groups[
            "circles" if one.rule == _CIRCLE else "unverified" if one.rule in _UNVERIFIED else "bad"
        ].append(one)
    refused = [one for one in letters if one.rule == _WOULD_BE_CIRCLE]
    failed = [] if examined is None else examined.failed
    over = [] if examined is None else examined.over_budget
    return {
        "examined": examined,
        "questions": questions[:MOST],
        "approvals": approvals[:MOST],
        "rules": Counter(one.rule for one in letters if one.rule != _WOULD_BE_CIRCLE).most_common(20),
        "dead": len(letters) - len(refused),
        "circles": groups["circles"][:MOST],
        "refused": refused[:20],
        "refused_count": len(refused),
        "unverified": groups["unverified"][:MOST],
        "bad": groups["bad"][:MOST],
        "warnings": [one for one in findings if one.severity == "warning"][:MOST],
        "failed": failed,
        "failed_count": 0 if examined is None else examined.failed_count,
        "over": over[:20],
        "well": examined is not None and not (questions or approvals or letters or bad or failed or over),
    }


def sessions(stack: Stack, query: Mapping[str, str]) -> Shown:
    """Return a page of sessions under a filter; with ``act`` also what an action on all of them would take."""
    only, offset = Filter.of(query), _number(query, "from")
    found = matching(stack, only, offset=offset)
    shown: Shown = {
        "only": only,
        "found": found,
        "offset": offset,
        "page": PAGE,
        "states": [state.value for state in ORDER],
        "agents": [record.name for record in stack.client.agents() if record.name not in SYSTEM_AGENTS],
        "act": "",
    }
    if (act := query.get("act", "")) in ("stop-many", "resume-many"):
        fits = may_stop if act == "stop-many" else may_resume
        all_of_them = matching(stack, only, limit=MOST_AT_ONCE)
        shown |= {
            "act": act,
            "count": sum(fits(one.state) for one in all_of_them.sessions),
            "left_out": sum(not fits(one.state) for one in all_of_them.sessions),
            "beyond": all_of_them.more,
            "most": MOST_AT_ONCE,
        }
    return shown


def tree(stack: Stack, session: str, query: Mapping[str, str]) -> Shown:
    """Return the rows of a tree."""
    opened, folded = _names(query, "open"), _names(query, "fold")
    pages: dict[str, int] = {}
    for part in _names(query, "at"):
        name, _, number = part.rpartition(":")
        if number.isdigit() and len(number) < 8:
            pages[name] = int(number)
    states = [state for state in _names(query, "state") if state in set(SessionState)]
    top, members = _members(stack, session)
    drawn = picture(members, opened=opened, folded=folded, pages=pages, states=states)
    shown = stack.parts.reader.find([row.id for row in drawn.rows if row.kind == "session"])
    return {
        "top": top,
        "picture": drawn.with_sessions(shown),
        "opened": opened,
        "folded": folded,
        "pages": pages,
        "chosen": states,
        "group_rows": GROUP_ROWS,
        "held_back": stack.client.held_back(shown),
    }


def flame(stack: Stack, session: str, query: Mapping[str, str]) -> Shown:
    """Return a tree as bars by time, cost or tokens."""
    by = next((name for name in BY if name == query.get("by")), BY[0])
    top, members = _members(stack, session)
    drawn = flame_of(members, by, stack.parts.ledger.server_ms())
    shown = stack.parts.reader.find([bar.id for bar in drawn.bars])
    return {"top": top, "flame": drawn.with_sessions(shown), "by": by, "all_by": BY, "sessions": len(members)}


def _members(stack: Stack, session: str) -> tuple[Session, list[SessionOutline]]:
    """Return a session, and it and everything below it in outlines."""
    top = stack.client.session(session)
    members = stack.outline(top.root or top.id)
    if top.parent:
        members = below(members, top.id)
    if not members:
        raise NotThere(f"the tree of {session} is gone")
    return top, members


def _names(query: Mapping[str, str], name: str) -> list[str]:
    return [part for part in query.get(name, "").split(",") if part][:MOST]


def session(stack: Stack, name: str, query: Mapping[str, str]) -> Shown:
    """Return all about one session; of one with very many children what happened only if it is asked for."""
    client, doctor = stack.client, stack.doctor()
    about = client.session(name)
    in_full = query.get("why") == "all"
    large = about.children > _LARGE and query.get("history") != "all"
    problems: list[Problem] = []
    steps: list[Step] = []
    if in_full:
        about, wait, problems = doctor.why(name)
        steps = doctor.held_up_by(name)
    else:
        wait = None if large else doctor.wait_of(name)
    events = [] if large else client.history(name, texts=True)
    page, before = _page_of(events, query)
    items = [] if large else stack.parts.reader.items(name)
    callbacks = [item for item in items if item.kind == "completion" and item.callback]
    asks = bool(about.questions)
    answer, fault = _answer(stack, name)
    return {
        "one": about,
        "prompt": stack.parts.reader.own_texts(about).prompt if large else _prompt(events),
        "wait": wait,
        "in_full": in_full,
        "steps": steps,
        "problems": problems,
        "answer": answer,
        "fault": fault,
        "says": _says(stack, about),
        "large": large,
        "events": page,
        "events_before": before,
        "event_count": len(events),
        "runs": client.runs(name)[-MOST:],
        "callbacks": callbacks[:MOST],
        "callback_count": len(callbacks),
        "budgets": client.budgets(name),
        "questions": [one for one in client.questions(name) if one.session == name] if asks else [],
        "approvals": [one for one in client.approvals(name) if one.session == name] if asks else [],
        "messages": _messages_of(stack, about.id),
        "resumable": may_resume(about.state),
        "stoppable": may_stop(about.state) or about.busy,
        "key": secrets.token_hex(8),
    }


def _answer(stack: Stack, name: str) -> tuple[str, str]:
    """Return the answer of a session, and why it cannot be believed; empty: it has none, or nothing is wrong."""
    try:
        return stack.client.answer(name), ""
    except NotGenuine as error:
        return "", str(error)
    except SessionFailed:
        return "", ""  # its reason is in the session


def _says(stack: Stack, about: Session) -> str:
    """Return what the model of a session that is at work has said last, as far as it is written; empty: nothing yet."""
    run = stack.parts.ledger.run(about.run) if about.state is SessionState.RUNNING and about.run else None
    turns = being_written(stack.parts.ledger, run, run.started_ms) if run is not None else []
    return turns[0].said("text")[-_SAID:] if turns else ""


def _page_of(events: list[Event], query: Mapping[str, str]) -> tuple[list[Event], int]:
    """Return a page of events, the latest by default, and how many are before it."""
    end = min(_number(query, "until") or len(events), len(events))
    first = max(0, end - MOST)
    return events[first:end], first


def _prompt(events: list[Event]) -> str:
    return next((event.detail for event in events if event.what == "launched"), "")


def _messages_of(stack: Stack, name: str) -> list[MessageRecord]:
    trail = stack.trail()
    return [] if trail is None else trail.search(task_id=name, limit=MOST)


def asked(stack: Stack, _query: Mapping[str, str]) -> Shown:
    """Return what waits for a person's answer, with what led there."""
    client = stack.client
    questions, approvals = client.questions()[:MOST], client.approvals()[:MOST]
    context = {}
    names = [one.session for one in questions] + [one.session for one in approvals]
    for name in list(dict.fromkeys(names))[:50]:
        try:
            events = client.history(name, texts=True)
        except UnknownSession:
            continue
        context[name] = {"prompt": _prompt(events), "events": events[-6:]}
    return {"questions": questions, "approvals": approvals, "context": context}


def letters(stack: Stack, query: Mapping[str, str]) -> Shown:
    """Return dead letters, grouped by their rule."""
    found = DeadLetters(stack.parts.redis, shards=stack.settings.shards).all()
    rule, offset = query.get("rule", ""), _number(query, "from")
    groups = defaultdict(list)
    for one in found:
        groups[one.rule].append(one)
    counts = sorted(((len(group), name) for name, group in groups.items()), reverse=True)
    size = MOST if rule else _EACH_RULE
    shown = [
        (name, count, groups[name][offset : offset + size] if rule else groups[name][:size])
        for count, name in counts
        if not rule or name == rule
    ]
    return {"groups": shown, "rule": rule, "offset": offset, "size": size, "total": len(found)}


def letter(stack: Stack, name: str, _query: Mapping[str, str]) -> Shown:
    """Return one dead letter with its bytes."""
    found = DeadLetters(stack.parts.redis, shards=stack.settings.shards).get(name)
    if found is None:
        raise NotThere(f"there is no dead letter {name}: it was replayed or dropped")
    return {"dead": found, "xml": _xml(found.data)}


def agents(stack: Stack, _query: Mapping[str, str]) -> Shown:
    """Return who serves what, what is ready and at work, limits and pauses."""
    parts = stack.parts
    records = [record for record in parts.agents.all() if not record.system]
    names = [record.name for record in records]
    living, services = living_agents(parts.redis), live_services(parts.redis)
    ready: Counter[str] = Counter()
    oldest: dict[str, int] = {}
    now_ms = parts.ledger.server_ms()
    for shard in range(stack.settings.shards):
        ready.update(parts.ledger.sweep.ready(shard, names))
        runs = [run for run in map(parts.reader.run, parts.reader.queued_runs(shard, limit=_QUEUED)) if run]
        of = {one.id: one.agent for one in parts.reader.find([run.session for run in runs])}
        for run in runs:
            agent, since_ms = of.get(run.session, ""), max(run.created_ms, run.claimable_ms)
            if since_ms <= now_ms:  # else it waits for a person, a time or another try, and is not ready
                oldest[agent] = min(oldest.get(agent, since_ms), since_ms)
    return {
        "records": records[:MOST],
        "served": {r.name: None if r.external else is_served(r, living) for r in records},
        "versions": living_versions(parts.redis),
        "limits": {one.agent: one for one in parts.concurrency.agents(names)},
        "ready": ready,
        "oldest": oldest,
        "services": services[:MOST],
        "queues": _queues(stack, records),
        "trees": parts.concurrency.trees()[:MOST],
        "each_tree": parts.concurrency.of_each_tree(),
        "providers": stack.settings.provider_limits,
        "tree_budget": stack.settings.tree_budget,
    }


def _queues(stack: Stack, records: list[AgentRecord]) -> list[tuple[str, list[str], int]]:
    """Return each queue with its agents, and since when it is paused; 0: it is not."""
    paused = {
        name: since for (kind, name), since in stack.parts.concurrency.paused().items() if kind == "queue"
    }
    agents: dict[str, list[str]] = {name: [] for name in paused}
    for record in records:
        if not record.external:
            agents.setdefault(record.queue, []).append(record.name)
    return [(name, agents[name], paused.get(name, 0)) for name in sorted(agents)][:MOST]


def audit(stack: Stack, query: Mapping[str, str]) -> Shown:
    """Return a page of a search in the audit trail."""
    trail = _trail(stack)
    fields = ("q", "type", "sender", "recipient", "outcome")
    only = {name: query.get(name, "").strip() for name in fields}
    before = _number(query, "before") or None
    found = trail.search(
        text=only["q"] or None,
        message_type=only["type"] or None,
        sender=only["sender"] or None,
        recipient=only["recipient"] or None,
        outcome=only["outcome"] or None,
        before=before,
        limit=PAGE + 1,
    )
    waiting = RedisStreams(stack.parts.redis).backlog(AUDIT_GROUP, all_streams(stack.settings.shards))
    return {
        "only": only,
        "found": found[:PAGE],
        "next": found[PAGE - 1].seq if len(found) > PAGE else 0,
        "total": trail.store.total(),
        "waiting": sum(max(0, row.unread) + row.pending for row in waiting),
        "where": stack.settings.audit_name,
        "verification": stack.verification,
        "most_breaks": _EACH_RULE,
    }


def conversation(stack: Stack, name: str, query: Mapping[str, str]) -> Shown:
    """Return the messages of a conversation, or of a session, in their order."""
    trail = _trail(stack)
    records = trail.about(name, lambda: stack.client.session(name).message)
    if not records:
        raise NotThere(f"the audit trail has nothing about {name}")
    as_list = query.get("as") == "list"
    offset, size = _number(query, "from"), MOST if as_list else _DRAWN
    shown = records[offset : offset + size]
    return {
        "name": name,
        "records": shown,
        "as_list": as_list,
        "diagram": "" if as_list else diagram(shown),
        "offset": offset,
        "size": size,
        "total": len(records),
    }


def message(stack: Stack, name: str, _query: Mapping[str, str]) -> Shown:
    """Return the rows of one message with its XML and what its signature says."""
    trail = _trail(stack)
    records = trail.search(message_id=name, limit=20)
    if not records:
        raise NotThere(f"the audit trail has no message {name}")
    parts = stack.parts
    proof = proof_of(EitherKeys(parts.keyring, parts.keyring.store), stack.settings)
    return {
        "name": name,
        "rows": [
            (one, _xml(one.xml), proof.fault(one.xml, one.published_ms) if one.xml else "") for one in records
        ],
    }


def _xml(data: bytes) -> str:
    lines = list(indented(data))
    return "\n".join(lines[:_XML_LINES]) + ("\n…" if len(lines) > _XML_LINES else "")


def _trail(stack: Stack) -> Any:
    trail = stack.trail()
    if trail is None:
        raise NotThere("there is no audit trail here yet, or its server is away")
    return trail
