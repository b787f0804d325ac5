"""The documents about what calls of models cost, and what may be spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field

from orchestrator.cli.documents.base import Document
from orchestrator.policy.budget import NANO, BudgetState


class CostDocument(Document):
    """What calls of models cost."""

    requests: int = Field(description="Requests.")
    input_tokens: int = Field(description="Tokens of the requests.")
    output_tokens: int = Field(description="Tokens of the answers.")
    usd: float = Field(description="US dollars; 0 for models whose price is not known.")
    estimated: int = Field(description="Of the tokens, those that no provider reported: an estimate.")


class ResourceDocument(Document):
    """One limit of a budget."""

    limit: float = Field(description="The most that may be spent.")
    spent: float = Field(description="What was spent.")
    reserved: float = Field(description="What is set aside for calls that are not finished.")
    left: float = Field(description="What further calls may take.")


class BudgetDocument(Document):
    """What a session and everything below it may spend, or all sessions of an agent together."""

    session: str = Field(description="The session; `agent NAME` for the budget of an agent.")
    limits: dict[Literal["requests", "tokens", "usd"], ResourceDocument] = Field(
        description="What is limited, and how it stands."
    )
    agents: dict[str, dict[Literal["requests", "tokens", "usd"], float]] = Field(
        description="What each agent spent of it."
    )


class BudgetsDocument(Document):
    """The budgets that a session counts against."""

    session: str = Field(description="The session.")
    budgets: tuple[BudgetDocument, ...] = Field(
        description="The budgets, the root's first, the agent's last."
    )

    @classmethod
    def of_states(cls, session: str, states: Mapping[str, BudgetState]) -> Self:
        """The document of budgets as they stand."""
        return cls.of(
            {"session": session, "budgets": [_budget(whose, state) for whose, state in states.items()]}
        )


def _budget(session: str, state: BudgetState) -> dict[str, Any]:
    def number(resource: str, value: int | None) -> float:
        return (value or 0) / (NANO if resource == "nano" else 1)

    names = {"requests": "requests", "tokens": "tokens", "nano": "usd"}
    return {
        "session": session,
        "limits": {
            names[resource]: {
                "limit": number(resource, limit),
                "spent": number(resource, state.spent.get(resource)),
                "reserved": number(resource, state.reserved.get(resource)),
                "left": number(resource, state.left(resource)),
            }
            for resource, limit in state.limits.items()
        },
        "agents": {
            agent: {names[resource]: number(resource, used) for resource, used in found.items()}
            for agent, found in state.users.items()
        },
    }
