"""The ledger once more, in plain Python: what every transition means, with nothing but dicts and lists."""

from __future__ import annotations

from dataclasses import dataclass, field

CLOSED = {"failed", "stopped", "deleted"}
RANK = {"critical": 0, "high": 1, "normal": 2, "low": 3}


@dataclass
class ModelItem:
    kind: str
    child: str = ""
    state: str = "owed"
    seq: int = 0
    priority: str = "high"
    status: str = ""


@dataclass
class ModelRun:
    session: str
    items: list[str]
    state: str = "queued"
    claim: str = ""
    attempt: int = 0
    failures: int = 0
    lost: int = 0
    stop: str = ""
    stop_state: str = ""
    effects: dict[str, tuple[str, str]] = field(default_factory=dict)  # key → (child, claim)
    asked: dict[str, tuple[str, str]] = field(default_factory=dict)  # key → (question, claim)


@dataclass
class ModelSession:
    parent: str
    state: str = "pending"
    run: str = ""
    runs: int = 0
    seq: int = 0
    delivered: int = 0
    told: bool = False
    doomed: bool = False
    questions: set[str] = field(default_factory=set)
    items: dict[str, ModelItem] = field(default_factory=dict)

    def completions(self, *states: str) -> int:
        return sum(1 for i in self.items.values() if i.kind == "completion" and i.state in states)

    @property
    def queue(self) -> list[str]:
        waiting = [(RANK[i.priority], i.seq, name) for name, i in self.items.items() if i.state == "queued"]
        return [name for _, _, name in sorted(waiting)]


@dataclass
class Model:
    """All sessions and runs. Method names are those of the ledger."""

    max_lost: int
    sessions: dict[str, ModelSession] = field(default_factory=dict)
    runs: dict[str, ModelRun] = field(default_factory=dict)

    def submit(self, session: str) -> None:
        self.sessions.setdefault(session, ModelSession(parent=""))

    def delegate(self, run: str, claim: str, key: str, child: str, callback: str, priority: str) -> str:
        r = self.runs[run]
        if r.state != "running" or r.claim != claim:
            return "lost"
        if key in r.effects:
            r.effects[key] = (child, claim)
            return "exists"
        r.effects[key] = (child, claim)
        self.sessions[child] = ModelSession(parent=r.session)
        self.sessions[r.session].items[callback] = ModelItem("completion", child, priority=priority)
        return "created"

    def start(self, session: str, run: str) -> bool:
        s = self.sessions[session]
        if s.state != "pending" or s.runs:
            return s.state == "pending" and s.run != "" and self.runs[s.run].state == "queued"
        self._make_run(session, run, [])
        return True

    def _make_run(self, session: str, run: str, items: list[str]) -> None:
        s = self.sessions[session]
        self.runs[run] = ModelRun(session, items)
        s.run, s.runs = run, s.runs + 1

    def claim(self, run: str, claim: str) -> bool:
        r = self.runs[run]
        if r.state != "queued":
            return r.state == "running" and r.claim == claim
        r.state, r.claim, r.attempt = "running", claim, r.attempt + 1
        self.sessions[r.session].state = "running"
        return True

    def commit(self, run: str, claim: str, status: str, attempts: int) -> str:
        r = self.runs[run]
        s = self.sessions[r.session]
        if r.claim != claim or r.state == "queued":
            return "lost"
        if r.state != "running":
            return "again"
        if status == "stopped" and r.stop_state:
            status = r.stop_state
        if status == "failed" and r.stop_state == "deleted":
            status = "deleted"
        if status == "failed" and r.failures + 1 < attempts and not r.stop:
            r.state, r.claim, r.failures = "queued", "", r.failures + 1
            return "retry"
        if status != "completed":
            self._fail_run(r.session, status)
            return status
        if r.attempt > 1:
            self._let_go(r, claim)
        for name in r.items:
            if s.items[name].state == "claimed":
                s.items[name].state = "delivered"
        r.state, s.run = "completed", ""
        pending = s.completions("owed", "queued", "claimed")
        s.state = "idle" if pending or s.queue or s.questions or s.doomed else "finished"
        s.doomed = s.doomed or (bool(r.stop) and s.state == "idle")
        if s.state == "finished":
            self._tell(r.session, "completed")
        return s.state

    def _let_go(self, r: ModelRun, claim: str) -> None:
        """What an earlier try made and this one did not take up again is nobody's."""
        s = self.sessions[r.session]
        for child, taken_up in r.effects.values():
            callback = next(n for n, i in s.items.items() if i.child == child and i.kind == "completion")
            if taken_up != claim and s.items[callback].state in {"owed", "queued"}:
                s.items[callback].state = "dead"
        for question, asked_by in r.asked.values():
            if asked_by != claim and question in s.questions:
                self._close_question(r.session, question)

    def release(self, run: str) -> str:
        r = self.runs[run]
        if r.stop:
            self._fail_run(r.session, r.stop_state or "stopped")
            return "ended"
        if r.lost + 1 > self.max_lost:
            self._fail_run(r.session, "failed")
            return "ended"
        r.state, r.claim, r.lost = "queued", "", r.lost + 1
        return "queued"

    def stop(self, session: str, state: str, *, force: bool) -> str:
        s = self.sessions[session]
        at_rest = s.state == "finished" and not s.run and not s.queue
        if s.state in CLOSED or (at_rest and state != "deleted"):
            if state == "deleted" and s.state != "deleted":
                s.state = "deleted"
                return "ended"
            return "over"
        if s.run:
            r = self.runs[s.run]
            if r.state == "running" and not force:
                r.stop, r.stop_state = "stop", state
                return "asked"
            self._fail_run(session, state)
        else:
            self._close(session, state)
        return "ended"

    def put(self, session: str, item: str) -> str:
        s = self.sessions[session]
        if s.state in CLOSED:
            return "closed"
        s.seq += 1
        s.items[item] = ModelItem("prompt", state="queued", seq=s.seq, priority="normal")
        return "queued"

    def ask(self, run: str, claim: str, key: str, question: str) -> str:
        r = self.runs[run]
        if key in r.asked:
            r.asked[key] = (r.asked[key][0], claim)
            return "exists"
        p = self.sessions[self.sessions[r.session].parent]
        if p.state in CLOSED:
            return "closed"
        r.asked[key] = (question, claim)
        self.sessions[r.session].questions.add(question)
        p.seq += 1
        p.items[question] = ModelItem("query", r.session, state="queued", seq=p.seq, priority="normal")
        return "queued"

    def reply(self, session: str, question: str, reply: str) -> str:
        s = self.sessions[session]
        if reply in s.items:
            return "exists"
        if s.state in CLOSED or question not in s.questions:
            return "refused"
        s.questions.remove(question)
        s.seq += 1
        s.items[reply] = ModelItem("reply", state="queued", seq=s.seq, priority="high")
        return "queued"

    def withdraw(self, session: str, question: str) -> bool:
        if question not in self.sessions[session].questions:
            self._leave_queue(session, question)
            return False
        self._close_question(session, question)
        return True

    def _close_question(self, session: str, question: str) -> None:
        self.sessions[session].questions.remove(question)
        self._leave_queue(session, question)

    def _leave_queue(self, session: str, question: str) -> None:
        item = self.sessions[self.sessions[session].parent].items[question]
        if item.state == "queued":
            item.state = "dead"

    def take(self, run: str, item: str) -> bool:
        r = self.runs[run]
        found = self.sessions[r.session].items[item]
        if found.state == "queued":
            found.state = "claimed"
            r.items.append(item)
            return True
        return found.state == "claimed" and item in r.items

    def flush(self, session: str, run: str, limit: int) -> str:
        s = self.sessions[session]
        if s.run:
            return "busy"
        if s.state in CLOSED:
            return "closed"
        if s.state == "pending" or s.doomed:
            return "waits"
        queue = s.queue
        if not queue:
            outstanding = s.completions("owed", "queued", "claimed") or s.questions
            if s.state == "idle" and not outstanding:
                self._make_run(session, run, [])
                return "run"
            return "empty"
        user = s.items[queue[0]].kind == "prompt"
        same = [n for n in queue if (s.items[n].kind == "prompt") == user]
        chosen = same[:1] if user else same[:limit]
        for name in chosen:
            s.items[name].state = "claimed"
        self._make_run(session, run, chosen)
        return "run"

    def _fail_run(self, session: str, state: str) -> None:
        s = self.sessions[session]
        r = self.runs[s.run]
        r.state = "failed" if state == "failed" else "stopped"
        for name in r.items:
            if s.items[name].state in {"queued", "claimed"}:
                s.items[name].state = "dead"
        self._close(session, state)

    def _close(self, session: str, state: str) -> None:
        s = self.sessions[session]
        s.state, s.run = state, ""
        for name in s.queue:
            s.items[name].state = "dead"
        self._tell(session, "failed")

    def _tell(self, session: str, status: str) -> None:
        s = self.sessions[session]
        if not s.parent or s.told:
            return
        s.told = True
        p = self.sessions[s.parent]
        item = next(i for i in p.items.values() if i.child == session and i.kind == "completion")
        if item.state != "owed":
            return
        item.status = status
        if p.state in CLOSED:
            item.state = "dead"
        else:
            p.seq += 1
            item.state, item.seq = "queued", p.seq
