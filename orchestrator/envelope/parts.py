"""Parts that several bodies share."""

from __future__ import annotations

from typing import Annotated, Literal

from orchestrator.envelope.model_values import (
    Amount,
    Attribute,
    AttributeText,
    Content,
    Count,
    Flag,
    Kind,
    Leaf,
    Moment,
    Name,
    Part,
    Rank,
    Repeated,
    Text,
)


class Objective(Leaf):
    """An objective of a task."""

    priority: Annotated[Rank | None, Attribute()] = None


class Criterion(Leaf):
    """A condition for accepting the work."""

    measurable: Annotated[Flag | None, Attribute()] = None


class Dependency(Part):
    """Another task that this one depends on. Without a type it blocks."""

    task_id: Annotated[Name, Content()]
    type: Annotated[Annotated[Literal["blocks-on", "depends-on"], Kind.TOKEN] | None, Attribute()] = None


class FileReference(Leaf):
    """A file that matters, and why."""

    path: Annotated[AttributeText | None, Attribute()] = None


class ApiContract(Leaf):
    """An interface that must be kept."""

    endpoint: Annotated[AttributeText | None, Attribute()] = None


class Constraint(Leaf):
    """A limit that the work must respect."""

    type: Annotated[AttributeText | None, Attribute()] = None


class Metric(Leaf):
    """A measured or wanted value."""

    name: Annotated[AttributeText | None, Attribute()] = None


class Attempt(Leaf):
    """Something that was tried."""

    order: Annotated[Rank | None, Attribute()] = None


class RecoveryOption(Leaf):
    """A way out of a failure."""

    priority: Annotated[Rank | None, Attribute()] = None
    type: Annotated[AttributeText | None, Attribute()] = None


class File(Leaf):
    """A file that was worked on; the text is a commit or a remark."""

    path: Annotated[AttributeText | None, Attribute()] = None
    status: Annotated[
        Annotated[Literal["created", "modified", "deleted"], Kind.TOKEN] | None, Attribute()
    ] = None


class FocusArea(Leaf):
    """A matter that a review should look at first."""

    priority: Annotated[Rank | None, Attribute()] = None


class TaskContext(Part):
    """Information that is useful for the work."""

    file_references: Annotated[tuple[FileReference, ...], Repeated("file-reference")] = ()
    api_contracts: Annotated[tuple[ApiContract, ...], Repeated("api-contract")] = ()
    constraints: Annotated[tuple[Constraint, ...], Repeated("constraint")] = ()


class Assignment(Part):
    """The agents that gave and got the work, and the time."""

    assigned_to: Name | None = None
    assigned_by: Name | None = None
    assigned_timestamp: Moment | None = None


class BudgetLimits(Part):
    """The most that a session and everything below it may spend; None: as much as it takes."""

    requests: Amount | None = None
    tokens: Amount | None = None
    nano_usd: Amount | None = None


class LaunchTerms(Part):
    """The terms of the session that a message begins, beside its task. They count only in messages of the stack itself."""

    group: Text | None = None
    time_limit_ms: Count | None = None
    budget: BudgetLimits | None = None
    plan: Flag | None = None
