"""`orchestra prompt`: what a model reads about the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.names import agent_argument
from orchestrator.cli.options import json_option, settings_of
from orchestrator.cli.output import print_json, write_raw

if TYPE_CHECKING:
    from orchestrator.agents.definition import AgentDefinition


@click.command()
@agent_argument()
@click.option(
    "--agents",
    multiple=True,
    metavar="MODULE_OR_FILE",
    help="Where agents are defined. Default: the setting `agents`.",
)
@click.option("--root", is_flag=True, help="As if a user gave the agent its task, and not another agent.")
@json_option
def prompt(*, agent: str, agents: tuple[str, ...], root: bool, as_json: bool) -> None:
    """Print what the model of AGENT will see before its task: its own instructions and the protocol. Needs no stack."""
    from orchestrator.agents.loader import load_agents
    from orchestrator.agents.options import LlmOptions
    from orchestrator.cli.documents.stack import PromptDocument
    from orchestrator.errors import UnknownAgent
    from orchestrator.worker.executors.protocol import protocol_text, takes_tagged_answers

    settings = settings_of(agents=agents or None)
    catalogue = load_agents(settings.agents)
    definition: AgentDefinition | None = catalogue.get(agent)
    if definition is None:
        raise UnknownAgent(agent, sorted(catalogue))
    sub_session = not root and takes_tagged_answers(definition)
    parts = [protocol_text(definition, sub_session=sub_session, folder=settings.prompts)]
    options = definition.options
    if isinstance(options, LlmOptions):
        parts = [options.all_instructions, *(parts if options.protocol else [])]
    text = "\n\n".join(filter(None, parts))
    if as_json:
        print_json(PromptDocument(agent=agent, prompt=text))
    else:
        write_raw(text)
