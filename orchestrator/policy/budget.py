"""Costs of calls of models, budgets of sessions and limits of providers. Pure values and decisions.

Money is counted in billionths of a US dollar, as whole numbers: a token costs less than a millionth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.errors import InputError

NANO: Final = 1_000_000_000
#: What is counted, as the ledger names it, and in words.
RESOURCES: Final[Mapping[str, str]] = {"requests": "requests", "tokens": "tokens", "nano": "USD"}
#: The most that anything is counted to: Redis scripts count in doubles.
MOST: Final = 2**53
#: Tokens of one report at most: a larger number is a mistake of the reporter.
MOST_TOKENS: Final = 10**12
#: Agents that an error names as users of a budget.
_SHOWN_USERS: Final = 5

#: A word or a part of one; a space before a word, which is part of it; another ASCII character; other characters.
_PIECE: Final = re.compile(r"([A-Z]?[a-z]+)|( )(?=[A-Za-z])|([\x00-\x7f])|([^\x00-\x7f]+)")
_VOWEL: Final = re.compile(r"[aeiouyAEIOUY]")

_PAIR = re.compile(r"\s*(requests|tokens|usd|per_s)\s*=\s*([0-9.][0-9_.eE+-]*)\s*")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one call, or the most that it may cost."""

    #: Requests.
    requests: int = 0
    #: Tokens of the requests.
    input_tokens: int = 0
    #: Tokens of the answers.
    output_tokens: int = 0
    nano_usd: int = 0  #: billionths of a US dollar
    #: Of the tokens, those that no provider reported: an estimate.
    estimated: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: count + getattr(other, name) for name, count in vars(self).items()})

    @property
    def tokens(self) -> int:
        """Tokens in both directions."""
        return self.input_tokens + self.output_tokens

    @property
    def usd(self) -> float:
        """The money in US dollars."""
        return self.nano_usd / NANO


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Upper bounds of spending; None: no bound.

    Of a session: spent by it and everything below it. Of an agent: by all its sessions, in ``per_s`` seconds.
    """

    requests: int | None = None  #: calls of models
    tokens: int | None = None  #: of input and output together
    usd: float | None = None  #: US dollars, by the prices of the models
    per_s: float | None = None  #: only of an agent's budget; None: a day

    def __post_init__(self) -> None:
        for name, most in (("requests", MOST), ("tokens", MOST), ("usd", MOST / NANO), ("per_s", MOST)):
            value: Any = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (number and 0 <= value < most):
                raise InputError(f"a budget of {name} = {value!r} is not valid: give a number from 0")

    @property
    def limits(self) -> dict[str, int]:
        """Limits as the ledger counts them: resource → limit, as whole numbers."""
        given = {
            "requests": self.requests,
            "tokens": self.tokens,
            "nano": None if self.usd is None else round(self.usd * NANO),
        }
        return {name: int(value) for name, value in given.items() if value is not None}

    def share(self, parts: int) -> Budget:
        """Return one of ``parts`` equal shares of the budget."""
        return Budget(
            requests=None if self.requests is None else self.requests // parts,
            tokens=None if self.tokens is None else self.tokens // parts,
            usd=None if self.usd is None else self.usd / parts,
            per_s=self.per_s,
        )

    @classmethod
    def of(cls, value: Any) -> Budget | None:
        """Return a budget as users write it: `tokens=120000, usd=2.5`, or a mapping with these names.

        Raises:
            InputError: it is neither.
        """
        if value is None or isinstance(value, Budget):
            return value
        if isinstance(value, str):
            found: dict[str, Any] = {}
            for part in value.split(","):
                pair = _PAIR.fullmatch(part)
                if pair is None or pair[1] in found:
                    raise InputError(
                        f"budget {value!r}: {part.strip()!r} is not one of requests=N, tokens=N, usd=N, each at most once"
                    )
                found[pair[1]] = _number(pair[2])
            value = found
        if not isinstance(value, Mapping) or not value or set(value) - {"requests", "tokens", "usd", "per_s"}:
            raise InputError(f"budget {value!r}: give some of requests, tokens and usd")
        return cls(**value)


def _number(text: str) -> float | int:
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    raise InputError(f"budget: {text!r} is no number")


@dataclass(frozen=True, kw_only=True)
class BudgetState:
    """The present state of a budget."""

    limits: Mapping[str, int]  #: resource (`requests`, `tokens`, `nano`: billionths of a US dollar) → limit
    spent: Mapping[str, int]  #: resource → what it has cost so far
    reserved: Mapping[str, int]  #: resource → what calls at work may cost at most
    users: Mapping[str, Mapping[str, int]]  #: agent → resource → what it spent

    def left(self, resource: str) -> int | None:
        """Return how much of a resource is left for further calls; None if it is not limited."""
        limit = self.limits.get(resource)
        return None if limit is None else limit - self.spent.get(resource, 0) - self.reserved.get(resource, 0)


def most_tokens(text: str) -> int:
    """Tokens that a text has at most, whatever the model; of prose it has about half as many.

    Tokenizers know words, and take what is none in pieces of a character or two: a word of few vowels, digits, signs. Of
    characters beyond ASCII a small vocabulary takes each byte for itself.
    """
    tokens = 0
    for word, space, sign, other in _PIECE.findall(text):
        if word:
            tokens += max(-(-len(word) // 3), len(word) - 3 * len(_VOWEL.findall(word)) // 2)
        elif not space:
            tokens += 1 if sign else len(other.encode(errors="replace"))
    return tokens


def nano_of(text: str) -> int:
    """Return an amount in US dollars in billionths.

    Raises:
        InputError: it is none.
    """
    with suppress(ValueError, OverflowError):
        usd = float(text.removeprefix("$").removesuffix("USD"))
        if 0 <= usd < math.inf:
            return round(usd * NANO)
    raise InputError(f"{text!r} is not an amount in US dollars, such as 0.25")


def amount(resource: str, number: int) -> str:
    """Return an amount of a resource as text: `120 tokens`, `0.25 USD`."""
    if resource == "nano":
        return f"{number / NANO:.6f}".rstrip("0").rstrip(".") + " USD"
    word = RESOURCES[resource]
    return f"{number} {word[:-1] if number == 1 else word}"


def describe(cost: Cost) -> str:
    """Return a cost as text."""
    money = f", {amount('nano', cost.nano_usd)}" if cost.nano_usd else ""
    guess = f" ({cost.estimated} of them estimated)" if cost.estimated else ""
    return f"{amount('requests', cost.requests)}, {cost.input_tokens} + {cost.output_tokens} tokens{guess}{money}"


def total(costs: Iterable[Cost]) -> str:
    """Return the sum of costs as text; empty if there are none."""
    summed = sum(costs, Cost())
    return describe(summed) if summed != Cost() else ""


def refusal(state: BudgetState, resource: str, needed: int) -> str:
    """Return why a call does not fit: what is left, what is reserved for other calls, and who used the rest."""
    limit, spent, held = (facts.get(resource, 0) for facts in (state.limits, state.spent, state.reserved))
    ranked = sorted(((found.get(resource, 0), agent) for agent, found in state.users.items()), reverse=True)
    users = ", ".join(f"{agent} {amount(resource, used)}" for used, agent in ranked[:_SHOWN_USERS] if used)
    left = f"{amount(resource, max(0, limit - spent - held))} of {amount(resource, limit)} are left"
    parts = [f"{left}, and this call may need {amount(resource, needed)}"]
    if held:
        parts.append(f"{amount(resource, held)} are reserved for calls that are not finished")
    parts.append(f"used by {users}" if users else "nothing is used yet")
    return "; ".join(parts)


class ProviderLimit(BaseModel):
    """Limits of one model under one key; None: as many as there are."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_minute: int | None = Field(default=None, gt=0)
    tokens_per_minute: int | None = Field(default=None, gt=0)
    calls: int | None = Field(default=None, gt=0)  #: at once


def fits(pattern: str, provider: str, model: str) -> bool:
    """Return True if a pattern matches `provider/model`."""
    return fnmatchcase(f"{provider}/{model}", pattern)


def limit_of(limits: Mapping[str, Mapping[Any, int]], provider: str, model: str) -> ProviderLimit:
    """Return the limit of a model: of the first pattern that fits it, in their order."""
    found = (limit for pattern, limit in limits.items() if fits(pattern, provider, model))
    return ProviderLimit.model_validate(next(found, {}))
