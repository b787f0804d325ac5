"""What a call of a model costs, by the price list of genai-prices (extra `llm`)."""

from __future__ import annotations

import math
from importlib import import_module

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
) -> Cost:
    """The cost of one request. ``input_tokens`` include those that a cache read or wrote; fewer are a mistake and corrected.

    A model that the list does not have costs nothing, unless its price ``must_be_known``: a budget in money holds only
    where it is.

    Raises:
        InputError: the price must be known, and is not.
    """
    input_tokens = max(input_tokens, cache_read_tokens + cache_write_tokens)
    nano_usd = 0
    try:
        prices = import_module("genai_prices")
        usage = prices.Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cache_read_tokens=cache_read_tokens,
            cache_write_tokens=cache_write_tokens,
        )
        price = prices.calc_price(usage, model, provider_id=provider).total_price
        # Rounded up: what is reserved is never less than the price.
        nano_usd = math.ceil(price * 1_000_000_000)
    except (ImportError, LookupError) as error:
        if must_be_known:
            why = (
                "genai-prices is not installed (extra llm)" if isinstance(error, ImportError) else str(error)
            )
            raise InputError(
                f"the price of model {model!r} is not known ({why}), so that a budget in money cannot hold; give a budget "
                "in tokens or requests"
            ) from error
    return Cost(requests=1, input_tokens=input_tokens, output_tokens=output_tokens, nano_usd=nano_usd)
