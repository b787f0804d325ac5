"""Which run a worker's process executes next; it may be claimed ahead, with the commit of the one before it."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.agents import AgentDefinition
from orchestrator.ledger import Claimed, Following
from workers.bundle import Ticket
from workers.deaths import claim_of_this_process
from workers.patience import persist
from workers.runtime import Runtime


class Turns:
    """The runs that are to be executed, of which the next may be claimed already."""

    def __init__(self, runtime: Runtime, next_ticket: Callable[[], Ticket | None], worker: str) -> None:
        self._runtime = runtime
        self._next_ticket = next_ticket
        self._worker = worker
        self._ahead: tuple[Ticket, Following | None] | None = None

    def next(self) -> Ticket | None:
        """The run that is to be executed now."""
        if self._ahead is None:
            return self._next_ticket()
        return self._ahead[0]

    def definition(self, agent: str) -> AgentDefinition | None:
        """The agent, if this worker runs it."""
        definition = self._definition(agent)
        if definition is None:
            self._ahead = None
        return definition

    def _definition(self, agent: str) -> AgentDefinition | None:
        definition = self._runtime.catalogue.get(agent)
        return None if definition is None or definition.record.foreign else definition

    def claim(self, ticket: Ticket) -> Claimed | None:
        """Take the run; None when another worker has it or it is over."""
        ahead, self._ahead = self._ahead, None
        following = ahead[1] if ahead is not None else None
        if following is not None and following.asked:
            return following.held
        ledger, claim_id = self._runtime.parts.ledger, claim_of_this_process()
        return persist(
            lambda: ledger.claim(ticket.run, claim_id, session_id=ticket.session, worker=self._worker),
            what="claim",
        )

    def following(self) -> Following | None:
        """The next run, to be claimed with the commit of the present one."""
        ticket = self._next_ticket()
        if ticket is None:
            return None
        if self._definition(ticket.agent) is None:
            self._ahead = (ticket, None)
            return None
        following = Following(
            run=ticket.run, session=ticket.session, claim=claim_of_this_process(), worker=self._worker
        )
        self._ahead = (ticket, following)
        return following
