"""Runs an agent that is a command-line program: in its place, in its conversation, and never beyond its run."""

from __future__ import annotations

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options.command import CommandOptions
from orchestrator.errors import AgentProgramError, OrchestraError
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.command.conversation import MAX_VISIBLE_CHARS, Memory, TurnByTurn
from orchestrator.worker.executors.command.sandbox import Place, place_of
from orchestrator.worker.executors.protocol import protocol_text
from orchestrator.worker.executors.text import Finished, finish, first_prompt
from orchestrator.worker.worktrees import Worktrees

#: The name under which the changes of a worktree are attached to the result.
DIFF = "diff"


def execute(definition: AgentDefinition, context: Context) -> str:
    """Run the program on this run's work; return its result.

    Raises:
        AgentProgramError: it cannot be run, failed, or gave no answer.
        NoResponse: it left out the tag of its answer, twice.
        WorktreeError: it has no worktree, or git failed.
        ClaimLost, SessionStopped, ServerUnavailable: the run cannot go on.
    """
    memory = Memory.of(context)
    worktrees = Worktrees(context.settings.data)
    with place_of(definition, context, worktrees) as place:
        finished = _converse(definition, context, place, memory)
        if place.worktree is not None:
            context.attach(DIFF, worktrees.diff(place.worktree))
    memory.visible = finished.visible[-MAX_VISIBLE_CHARS:]
    memory.save(context)
    return finished.result


def _converse(definition: AgentDefinition, context: Context, place: Place, memory: Memory) -> Finished:
    protocol = ""
    if place.options.protocol:
        protocol = protocol_text(
            definition, sub_session=bool(context.parent), folder=context.settings.prompts
        )
    prompt = first_prompt(context, protocol)
    if place.options.output == "acp":
        try:
            from orchestrator.worker.executors.command.acp import converse
        except ModuleNotFoundError as error:
            raise AgentProgramError(
                place.options.command[0],
                "the Agent Client Protocol needs its library; install agent-orchestra[acp]",
            ) from error
        return converse(context, place, memory, prompt)
    conversation = TurnByTurn(context, place, memory)
    return finish(context, conversation.say(prompt), conversation.say)


def explain(error: BaseException, definition: AgentDefinition) -> str:
    """Return a line for the agent's delegator about what ended its run."""
    if isinstance(error, OrchestraError):
        return str(error)
    options = definition.options
    name = options.command[0] if isinstance(options, CommandOptions) else definition.name
    return f"the program {name}: {type(error).__name__}: {error}"
