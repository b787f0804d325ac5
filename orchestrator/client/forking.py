"""`Client.fork`: a new tree that begins where a run of another session began. The other session stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from orchestrator.agents.options import EXECUTORS
from orchestrator.agents.registry import OPERATOR
from orchestrator.bootstrap import Container
from orchestrator.client.submission import Submission
from orchestrator.errors import EmptyPrompt, InputError, KeyInUse, PayloadError
from orchestrator.ledger import Item, ItemState, Run, RunState, Session, SessionState, Submitted
from orchestrator.ledger.large_text import Decrypted, Seal, Truncated
from orchestrator.ledger.launches import Fork, Found, Seed, as_given, found_by
from orchestrator.operations.requests import Fork as ForkRequest
from orchestrator.operations.requests import Submit

#: States in which a run is in the past.
_ENDED = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.STOPPED})
#: Runs that an error names.
_NAMED = 5


class Forking:
    """Makes forks for the operator."""

    def __init__(self, parts: Container) -> None:
        self._parts = parts
        self._ledger = parts.ledger

    def fork(self, request: ForkRequest) -> Submitted:
        """See `Client.fork`.

        Raises:
            UnknownSession: there is no such session.
            InputError: it cannot be forked there; the error says why.
            KeyInUse: the key was used before, for another session.
            EmptyPrompt, UnknownAgent, StreamFull: as of a submission.
            PayloadError: what the run was given is no longer kept, or is larger than the store takes.
        """
        session_id, at, prompt = request["session"], request["at"], request.get("prompt")
        about = self._ledger.session(session_id)
        if prompt is not None and not prompt.strip():
            raise EmptyPrompt(about.agent)
        run = self._run(about, at)
        found = self._found(about, run)
        said = self._ledger.texts(about.id, ["prompt"]).get("prompt", "")
        if about.sealed and run.cause == "start" and prompt is None:
            raise InputError(f"the task of {about.id} is encrypted for its agent; give the fork a prompt")
        if prompt is not None and run.cause == "callbacks":
            raise InputError(
                f"{run.id} was resumed by callbacks and has no prompt to replace: leave the prompt out, and resume the "
                "new session with it"
            )
        options = {name: value for name, value in request.items() if name not in ("session", "at")}
        new_root = {
            "title": f"{about.title[:100]} (fork of {about.id} at {run.id})",
            **options,
            "agent": about.agent,
            "prompt": prompt if prompt is not None and run.cause == "start" else said,
        }
        submitted = Submission(self._parts).begin(
            cast("Submit", new_root),
            planned=about.planned and run.cause == "start" and prompt is None,
            make_fork=lambda new: self._make(new, about, run, found, prompt),
            encrypted=about.encrypted,
        )
        if not submitted.created and self._ledger.session(submitted.session).forked_at != run.id:
            raise KeyInUse(request.get("key"), submitted.session, submitted.agent, "prompt")
        return submitted

    def _run(self, about: Session, at: str) -> Run:
        """Return the run of a session at which it is to be forked, by its id or its number."""
        if about.state is SessionState.DELETED:
            raise InputError(f"session {about.id} was deleted, and nothing is kept of its runs")
        runs = self._ledger.runs(about.id)
        chosen = [run for run in runs if at in (run.id, str(run.number))]
        if not chosen:
            last = ", ".join(run.id for run in runs[-_NAMED:]) or "none yet"
            raise InputError(f"session {about.id} has no run {at!r}; its last runs: {last}")
        if chosen[0].state not in _ENDED:
            raise InputError(
                f"{chosen[0].id} is {chosen[0].state}: a session is forked at a run that has ended"
            )
        return chosen[0]

    def _found(self, about: Session, run: Run) -> Found:
        found = found_by(self._ledger, about.id, run.number)
        if found is None:
            kept = self._ledger.limits.fork_runs
            raise InputError(
                f"the beginning of {run.id} is no longer kept: {about.id} has had {about.runs} runs, and the last {kept} "
                "can be forked; choose a later one"
            )
        authenticity = self._parts.authenticity
        for what, said, proof in found.own if authenticity.reads_as_operator else ():
            if fault := authenticity.fault(said, proof, reader=OPERATOR):
                raise InputError(
                    f"{run.id} cannot be forked: the {what} that it found is not genuine: {fault}"
                )
        record = self._parts.agents.get(about.agent)
        if record is not None and (
            record.external or (EXECUTORS[record.executor].keeps_conversation and found.memory)
        ):
            raise InputError(
                f"agent {about.agent!r} is a program that keeps its conversation itself: it can be forked at its first run "
                "only"
                if not record.external
                else f"agent {about.agent!r} is an external program, and what it knows is not here: it cannot be forked"
            )
        return found

    # --- what the new session begins with -----------------------------------------------------

    def _make(self, new: str, about: Session, run: Run, found: Found, prompt: str | None) -> Fork:
        large_texts = self._ledger.large_texts
        seal = Seal(label=new, by=OPERATOR, to=(about.agent,)) if about.encrypted else None
        copied: list[str] = []

        def given(item: Item, text: str) -> tuple[Item, str]:
            own, said = as_given(*self._genuine(about, item, text), session=new)
            if isinstance(said, Decrypted) and said.failed:
                raise InputError(
                    f"{run.id} cannot be forked here: what it was given is encrypted, and no key in this data folder opens it"
                )
            ref = own.extra.get("whole")
            if ref:
                copy = large_texts.shorten(new, large_texts.read(ref), above_bytes=0, seal=seal)
                copied.append(copy.sha256)
                own = replace(own, extra={**own.extra, "whole": copy.ref})
            return own, prompt if prompt is not None and own.kind == "prompt" else said

        runs = self._ledger.runs(about.id)
        items = {item.id: item for item in self._ledger.items(about.id)}
        before = [one for one in runs if one.number < run.number]
        # What the run's own calls took, the new run takes again from children of its own.
        carried = [items[name] for name in run.items if name in items and not items[name].extra.get("taken")]
        earlier = {name for one in before for name in one.items}
        results = [item for item in items.values() if item.id in earlier and _is_result(item)]
        seed = Seed(
            cause=run.cause,
            given=tuple(
                given(*one)
                for one in (
                    *self._texts(about, carried),
                    *self._outstanding(about, run, before, items),
                )
            ),
            earlier=tuple(given(*one) for one in self._texts(about, results)),
        )
        try:
            return Fork(
                session=about.id,
                run=run.id,
                by=OPERATOR,
                state=json.dumps(found.state) if found.state is not None else "",
                memory=large_texts.shorten(new, found.memory, above_bytes=0, seal=seal)
                if found.memory
                else _NOTHING,
                seed=large_texts.shorten(new, seed.dump(), above_bytes=0, seal=seal),
                large_texts=tuple(copied),
                sealed=about.sealed and prompt is None,
                waiting=_policies(about),
                # An heir belongs to the old tree.
                close_policy=about.close_policy if about.close_policy in ("stop", "abandon") else "stop",
                # Another prompt is another task.
                task="" if prompt is not None and run.cause == "start" else self._task(about),
                seal=seal,
            )
        except PayloadError as error:
            raise PayloadError(
                f"{run.id} cannot be forked: what it was given is too large: {error}"
            ) from error

    def _task(self, about: Session) -> str:
        return self._ledger.texts(about.id, ["task"]).get("task", "")

    def _genuine(self, about: Session, item: Item, text: str) -> tuple[Item, str]:
        """Return an item, or a refusal in its place if somebody has changed it in the ledger."""
        authenticity = self._parts.authenticity
        if not item.extra.get("proof") or not authenticity.reads_as_operator:
            return item, text
        fault = authenticity.item_fault(about.id, item, text, reader=OPERATOR)
        if not fault:
            return item, text
        extra = {name: value for name, value in item.extra.items() if name in ("group", "answers")}
        return replace(
            item, status="failed", title="", extra=extra
        ), f"[not genuine, left out of the fork: {fault}]"

    def _texts(self, about: Session, items: list[Item]) -> Iterator[tuple[Item, str]]:
        texts = self._ledger.texts(about.id, [item.id for item in items])
        yield from ((item, texts.get(item.id, "")) for item in items)

    def _outstanding(
        self, about: Session, run: Run, before: Sequence[Run], known: Mapping[str, Item]
    ) -> Iterator[tuple[Item, str]]:
        """Yield the results and replies that the runs before were waiting for and this run was not given.

        Those that have not come since fail in the new tree, with the reason.
        """
        had = {name for one in (*before, run) for name in one.items}
        wanted = [name for one in before for name in self._awaited(one.id)]
        left = [known[name] for name in dict.fromkeys(wanted) if name not in had and name in known]
        for item, text in self._texts(about, [item for item in left if item.callback]):
            if item.status in ("completed", "partial-success", "failed") and text:
                yield item, text
            else:
                reason = f"session {item.child} had not ended when this tree was forked at {run.id}, and belongs to another one"
                yield replace(item, status="failed", extra=_kept(item)), reason
        replies = {str(item.extra.get("answers")): item for item in known.values() if item.kind == "reply"}
        for question in [name for name in dict.fromkeys(wanted) if name not in known]:
            reply = replies.get(question)
            if reply is not None and reply.id not in had:
                yield from self._texts(about, [reply])
            elif reply is None:
                yield _no_reply(question, about), f"no reply had come when this tree was forked at {run.id}"

    def _awaited(self, run: str) -> Iterator[str]:
        """Yield the callbacks and questions that a run's effects have made."""
        for effect in self._ledger.effects(run):
            if effect.get("child"):
                yield str(effect["callback"])
            elif effect.get("asks"):
                yield str(effect["item"])


def _policies(about: Session) -> str:
    """Return the waiting policies of a session as JSON, without what was counted and timed for the old tree."""
    policies = about.waiting if isinstance(about.waiting, dict) else {}
    kept = {
        group: {name: rule[name] for name in ("mode", "k", "window_ms") if name in rule}
        for group, rule in policies.items()
    }
    return json.dumps(kept) if kept else ""


_NOTHING = Truncated(text="", ref=None)


def _is_result(item: Item) -> bool:
    """Return True if an item is a result that its session received."""
    return item.kind == "completion" and bool(item.state is ItemState.DELIVERED or item.extra.get("rejected"))


def _kept(item: Item) -> dict[str, Any]:
    return {name: item.extra[name] for name in ("group",) if name in item.extra}


def _no_reply(question: str, about: Session) -> Item:
    return Item(
        id=question,
        kind="reply",
        state=ItemState.CLAIMED,
        child=about.parent,
        agent=about.delegator,
        status="failed",
        priority="high",
        seq=0,
        size=0,
        run="",
        reason="",
        extra={"answers": question},
    )
