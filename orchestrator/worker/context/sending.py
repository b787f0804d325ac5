"""Messages that an agent wrote itself: checked against what it may say, and sent in its name.

All are checked before the first is sent. Each is sent by the same transition as if the agent had called the context:
a status, a delegation, a question; a task-completion is what reports the end of its session.
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, assert_never

from orchestrator.envelope import bodies
from orchestrator.envelope.message_types import MESSAGE_TYPES
from orchestrator.envelope.opaque import ClaimCheckBody, CompressedBody, EncryptedBody, OpaqueBody
from orchestrator.envelope.parts import Assignment, Dependency
from orchestrator.envelope.prompt_text import prompt_of
from orchestrator.envelope.written import WrittenMessage
from orchestrator.ledger import Outgoing
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.launches import Launches, LaunchRequest
from orchestrator.worker.context.messages import MessageSender, Question


class WrittenMessages:
    """Sends the messages that the agent of one run wrote."""

    def __init__(self, effects: Effects, sender: MessageSender, launches: Launches) -> None:
        self._effects = effects
        self._sender = sender
        self._launches = launches

    def check(self, messages: Sequence[WrittenMessage]) -> list[str]:
        """Return the faults of messages that are valid XML, a sentence each; empty if all may be sent."""
        named = [
            one.task_id for one in messages if isinstance(one.body, bodies.TaskDelegation) and one.task_id
        ]
        labels = set(named)
        wrong = [why for one in messages for why in self._wrong(one, labels)]
        if len(named) != len(labels):
            wrong.append("two task-delegations have the same task-id")
        if sum(MESSAGE_TYPES[one.body.type].ends == "task" for one in messages) > 1:
            wrong.append("one answer ends the task once: there is more than one task-completion or error")
        if not wrong:
            try:
                _in_order(messages)
            except CycleError:
                wrong.append("its task-delegations depend on one another in a circle")
        return wrong

    def _wrong(self, message: WrittenMessage, labels: set[str]) -> list[str]:
        session, body, wrong = self._effects.held.session, message.body, []
        if isinstance(body, OpaqueBody) or not MESSAGE_TYPES[body.type].in_answers:
            return [f"a {body.type} cannot be sent in an answer"]
        if message.sender and message.sender != session.agent:
            wrong.append(f"the sender is {session.agent!r}, not {message.sender!r}; leave the sender out")
        if isinstance(body, bodies.TaskDelegation):
            return wrong + self._wrong_delegation(message, body, labels)
        if message.recipient and message.recipient != self._effects.delegator:
            wrong.append(
                f"a {body.type} goes to {self._effects.delegator!r}, who gave you the task; leave the recipient out"
            )
        own = (session.id, session.reported_as)
        if message.task_id and message.task_id not in own:
            wrong.append(f"your task-id is {session.reported_as!r}, not {message.task_id!r}; leave it out")
        row = MESSAGE_TYPES[body.type]
        if row.text and not row.ends and not session.parent:  # it goes into the queue of the parent
            wrong.append(f"a {body.type} has nobody to go to: you are at the root of your tree")
        return wrong

    def _wrong_delegation(
        self, message: WrittenMessage, body: bodies.TaskDelegation, labels: set[str]
    ) -> list[str]:
        agent, wrong = _assigned_to(message, body), []
        if not agent:
            wrong.append("a task-delegation needs <assignment><assigned-to>, the agent that is to do it")
        elif agent not in (known := [record.name for record in self._launches.delegates()]):
            names = ", ".join(known) or "nobody"
            wrong.append(f"you may not delegate to {agent!r}; you may to: {names}")
        if body.launch is not None:
            wrong.append(
                "what the session of a task is given is not for its message to say; leave <launch> out"
            )
        if not body.task.description.strip():
            wrong.append("a task-delegation needs a description")
        others = [d.task_id for d in body.task.dependencies]
        wrong += [
            f"there is no task {one!r} in your answer to depend on" for one in others if one not in labels
        ]
        return wrong

    def send(self, messages: Sequence[WrittenMessage]) -> bodies.TaskCompletion | bodies.ErrorReport | None:
        """Send messages that were checked; returns the message that ends the session, which the commit of its run sends.

        Raises:
            LimitExceeded: the session, its tree or a conversation is as large as it may be.
        """
        end: bodies.TaskCompletion | bodies.ErrorReport | None = None
        for message in messages:
            match message.body:
                case bodies.StatusUpdate() as body:
                    own = body.model_copy(update={"task_id": self._effects.held.session.reported_as})
                    self._sender.status(own)
                case bodies.Query() as body:
                    priority = message.priority or body.urgency
                    self._sender.send_question(Question(message=body.subject, query=body, priority=priority))
                case bodies.TaskCompletion() as body:
                    end = self._effects.completion = body
                case bodies.ErrorReport() as body:
                    end = self._effects.failure = body
                case bodies.TaskDelegation():
                    pass  # below, each after those that it depends on
                case bodies.ReviewRequest() | bodies.Escalation() | bodies.Reply() | bodies.Message():
                    raise AssertionError(f"a {message.body.type} cannot be sent in an answer")
                case EncryptedBody() | CompressedBody() | ClaimCheckBody():
                    raise AssertionError("an agent writes bodies that can be read")
                case _:
                    assert_never(message.body)
        children: dict[str, str] = {}
        for message in _in_order(messages):
            children[message.task_id] = self._delegate(message, children)
        return end

    def _delegate(self, message: WrittenMessage, children: dict[str, str]) -> str:
        body = message.body
        assert isinstance(body, bodies.TaskDelegation)
        effects, agent = self._effects, _assigned_to(message, body)
        needs = tuple(
            Dependency(task_id=children[d.task_id], type="depends-on") for d in body.task.dependencies
        )

        def write(child: str) -> Outgoing:
            task = body.task.model_copy(update={"task_id": child, "dependencies": needs})
            return effects.message_factory.as_written(
                bodies.TaskDelegation(task=task),
                **effects.launch_parties(agent),
                priority=message.priority,
            )

        return self._launches.launch(
            LaunchRequest(
                agent=agent,
                title=body.task.title,
                description=prompt_of(body),
                options={"priority": message.priority, "after": tuple(need.task_id for need in needs)},
                write=write,
            )
        )


def _assigned_to(message: WrittenMessage, body: bodies.TaskDelegation) -> str:
    assignment: Assignment | None = body.assignment
    return (assignment.assigned_to if assignment is not None else "") or message.recipient


def _in_order(messages: Sequence[WrittenMessage]) -> list[WrittenMessage]:
    """Return the delegations, each after those that it depends on.

    Raises:
        CycleError: they depend on one another in a circle.
    """
    delegations = [message for message in messages if isinstance(message.body, bodies.TaskDelegation)]
    places = {message.task_id: place for place, message in enumerate(delegations)}
    graph: dict[int, list[int]] = {}
    for place, message in enumerate(delegations):
        body: Any = message.body
        graph[place] = [places[need.task_id] for need in body.task.dependencies]
    return [delegations[place] for place in TopologicalSorter(graph).static_order()]
