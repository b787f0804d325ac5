"""Answers a program that asks whether it may use a tool: by its agent's rule, by its parent, or by a person."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

from acp.schema import PermissionOption

from orchestrator.errors import InputError, LimitExceeded, NoReply, WouldDeadlock
from orchestrator.log import get_logger
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.command.live import LiveStatus

_log = get_logger()

_YES: Final = frozenset({"allow", "yes", "y", "ok", "okay", "approve", "approved", "allowed", "true"})


class Permissions:
    """Decides on the tools of one agent's program, in one run."""

    def __init__(
        self, context: Context, rule: Literal["ask", "approve", "allow", "deny"], live: LiveStatus
    ) -> None:
        self._context = context
        self._rule = rule
        self._live = live

    def decide(
        self, tool: str, arguments: object, options: Sequence[PermissionOption]
    ) -> PermissionOption | None:
        """Return the option that the program gets; None if its request is cancelled.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: the run cannot go on.
        """
        if self._rule == "deny":
            return choose("deny", options)
        if self._rule == "allow":
            return choose("allow", options) or choose("allow always", options)
        ask_person = self._rule == "approve" or not self._context.parent
        self._live("tool", f"waits for {'your approval' if ask_person else 'permission'}: {tool}")
        try:
            reply = self._ask_person(tool, arguments) if ask_person else self._ask_parent(tool, options)
        except (NoReply, InputError, LimitExceeded, WouldDeadlock) as error:
            _log.warning("permission-denied", session=self._context.session, tool=tool, reason=str(error))
            reply = "deny"
        return choose(reply, options)

    def _ask_parent(self, tool: str, options: Sequence[PermissionOption]) -> str:
        names = ", ".join(f"{option.name!r}" for option in options)
        return self._context.ask(
            f"May I use {tool}? Reply with one of: {names}; or with allow or deny.",
            kind="clarification",
            context={"tool": tool},
        )

    def _ask_person(self, tool: str, arguments: object) -> str:
        """`allow` or `deny`. The program holds its slot meanwhile: what it has in mind ends with its process."""
        approvals = self._context.approvals
        given = (
            arguments if isinstance(arguments, dict) else {} if arguments is None else {"input": arguments}
        )
        approval, _ = approvals.post(tool, given)
        decision = approvals.await_decision(approval, timeout_s=self._context.patience_s)
        if decision is None and not approvals.withdraw(
            approval, "nobody answered before the run's time was nearly up"
        ):
            decision = approvals.await_decision(approval, timeout_s=0)  # somebody has, just now
        return "allow" if decision is not None and decision.approved else "deny"


def choose(reply: str, options: Sequence[PermissionOption]) -> PermissionOption | None:
    """Return the option that a reply names: by name, by id, or by its first word; None if the request is cancelled.

    A reply that names no option and does not begin with consent is no consent. "Always" counts right after it.
    """
    words = reply.strip().casefold()
    for option in options:
        if words in (option.name.casefold(), option.option_id.casefold()):
            return option
    first = re.match(r"(\w+)([\s,]+always\b)?", words)
    wanted = ["reject_once", "reject_always"]
    if first is not None and first[1] in _YES:
        wanted = ["allow_always", "allow_once"] if first[2] else ["allow_once"]
    for kind in wanted:
        for option in options:
            if option.kind == kind:
                return option
    return None
