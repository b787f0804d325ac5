"""Cost of a call of a model, by the price list of genai-prices (extra `llm`)."""

from __future__ import annotations

import math
from importlib import import_module

from orchestrator.agents.options.llm import ModelPrices
from orchestrator.errors import InputError
from orchestrator.policy.budget import Cost


def cost_of(
    model: str,
    *,
    provider: str | None = None,
    input_tokens: int = 0,
    output_tokens: int = 0,
    cache_read_tokens: int = 0,
    cache_write_tokens: int = 0,
    must_be_known: bool = False,
    prices: ModelPrices | None = None,
) -> Cost:
    """Return the cost of one request. ``input_tokens`` include those that a cache read or wrote; fewer are a mistake
    and corrected.

    A model that the list does not have costs nothing, unless its price ``must_be_known``: a budget in money holds only
    where it is. ``prices`` are used instead of the list.

    Raises:
        InputError: the price must be known, and is not.
    """
    input_tokens = max(input_tokens, cache_read_tokens + cache_write_tokens)
    nano_usd = 0
    if prices is not None:
        charged = (
            (input_tokens - cache_read_tokens - cache_write_tokens, prices.input),
            (cache_read_tokens, prices.input if prices.cache_read is None else prices.cache_read),
            (cache_write_tokens, prices.input if prices.cache_write is None else prices.cache_write),
            (output_tokens, prices.output),
        )
        # A millionth of a dollar is a thousand of these; rounded up, as below.
        nano_usd = math.ceil(sum(tokens * price for tokens, price in charged) * 1000)
        return Cost(requests=1, input_tokens=input_tokens, output_tokens=output_tokens, nano_usd=nano_usd)
    try:
        listed = import_module("genai_prices")
        usage = listed.Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cache_read_tokens=cache_read_tokens,
            cache_write_tokens=cache_write_tokens,
        )
        price = listed.calc_price(usage, model, provider_id=provider).total_price
        # Rounded up: what is reserved is never less than the price.
        nano_usd = math.ceil(price * 1_000_000_000)
    except (ImportError, LookupError) as error:
        if must_be_known:
            why = (
                "genai-prices is not installed (extra llm)" if isinstance(error, ImportError) else str(error)
            )
            raise InputError(
                f"the price of model {model!r} is not known ({why}), so that a budget in money cannot hold; give its price in "
                "the agent's `prices`, or a budget in tokens or requests"
            ) from error
    return Cost(requests=1, input_tokens=input_tokens, output_tokens=output_tokens, nano_usd=nano_usd)
