"""The options of a submitted task beside its prompt: its structure, its delivery and its limits."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Final, Self

from pydantic import Field

from orchestrator.envelope.bodies import Task
from orchestrator.envelope.model import RetryPolicy
from orchestrator.envelope.model_base import Part
from orchestrator.envelope.model_values import Priority
from orchestrator.envelope.structured import part_of
from orchestrator.messages.factory import Delivery
from orchestrator.policy.routing import MAX_TIMEOUT_S

Seconds = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)]


class TaskOptions(Part):
    """The options of a submit. None: as the routing table says, or no limit."""

    task: Task | None = None
    priority: Priority | None = None
    expires_s: Seconds | None = None  #: seconds from now after which the task is not begun any more
    retry_policy: RetryPolicy | None = None
    time_limit_s: Seconds | None = None  #: seconds within which the session must have ended

    @classmethod
    def of(cls, **given: Any) -> Self:
        """The options with these names; those that are None are left out.

        Raises:
            InputError: there is no such option, or its value is wrong.
        """
        said = {name: value for name, value in given.items() if value is not None}
        for name, model in (("task", Task), ("retry_policy", RetryPolicy)):
            if name in said:
                said[name] = part_of(model, said[name], name=name)
        return part_of(cls, said, name="")

    @property
    def delivery(self) -> Delivery:
        """How the task is to be delivered."""
        return Delivery(priority=self.priority, expires_s=self.expires_s, retry_policy=self.retry_policy)

    @property
    def digest(self) -> str:
        """The digest of the options in a submission token; empty without options."""
        said = self.model_dump_json(exclude_defaults=True)
        return hashlib.sha256(said.encode()).hexdigest() if said != "{}" else ""


NO_OPTIONS: Final = TaskOptions()
