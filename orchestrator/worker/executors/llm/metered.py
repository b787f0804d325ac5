"""Each request to a model within the limits of its provider and the budgets of its session.

The most that a request can cost is reserved before it, and what it did cost is counted after it. A provider that says 429
or 529 holds back everybody who uses its key; the run waits, or frees its slot where that takes long, and uses up no attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pydantic_core
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, ModelRateLimitError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from orchestrator.errors import InputError, ModelFailed
from orchestrator.policy.budget import MOST_TOKENS, Cost
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.prices import cost_of
from orchestrator.worker.context.provider_limits import Permit
from orchestrator.worker.context.spending import Reservation
from orchestrator.worker.executors.llm.current import current_context
from orchestrator.worker.executors.llm.failures import BrokenAnswer

#: Tokens of an answer at most, where the settings of the model do not say it (`max_tokens`).
MAX_OUTPUT_TOKENS: Final = 16_384
#: Seconds that a request may take, where the settings of the model do not say it (`timeout`).
TIME_LIMIT_S: Final = 600
#: Seconds that a provider is left alone which does not say how long: at first, and at most.
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
#: HTTP: too many requests; overloaded.
_BUSY: Final = (429, 529)


class Metered(WrapperModel):
    """A model whose requests are counted; outside of a run it is the model itself.

    ``stands_in``: whether another model follows, which is asked where this one is busy.
    """

    def __init__(self, wrapped: Model, *, stands_in: bool = False) -> None:
        super().__init__(wrapped)
        self._stands_in = stands_in

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """As the model, when its turn has come and its budgets allow it."""
        context = current_context()
        if context is None:
            return await super().request(messages, model_settings, model_request_parameters)
        asked = _Request(self.wrapped, context, messages, model_settings, model_request_parameters)
        while True:
            async with asked.admitted() as (reservation, permit):
                try:
                    response = await super().request(messages, model_settings, model_request_parameters)
                except ModelAPIError as error:
                    await asked.refused(error, stands_in=self._stands_in)
                else:
                    await asked.settle(reservation, permit, response.usage)
                    return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        """As `request`, in pieces; what was streamed counts, however the stream ends."""
        context = current_context()
        parameters = (messages, model_settings, model_request_parameters, run_context)
        if context is None:
            async with super().request_stream(*parameters) as stream:
                yield stream
            return
        asked = _Request(self.wrapped, context, messages, model_settings, model_request_parameters)
        while True:
            began = False
            async with asked.admitted() as (reservation, permit):
                try:
                    async with super().request_stream(*parameters) as stream:
                        began = True
                        try:
                            yield stream
                        finally:
                            await asked.settle(reservation, permit, stream.usage)
                        if not _says_why_it_ended(stream.get()):
                            raise BrokenAnswer(self.model_name)
                    return
                except ModelAPIError as error:
                    if began:
                        raise
                    await asked.refused(error, stands_in=self._stands_in)


class _Request:
    """One request, until it is answered."""

    def __init__(
        self,
        model: Model,
        context: Context,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> None:
        self._context = context
        self._provider, self._model = model.system, model.model_name
        #: The ledger gets a digest of it, never the key.
        self._key = str(getattr(getattr(model, "client", None), "api_key", "") or "")
        self._settings: dict[str, Any] = {**(model.settings or {}), **(settings or {})}
        # A text has no more tokens than bytes.
        input_tokens = len(ModelMessagesTypeAdapter.dump_json(messages)) + len(
            pydantic_core.to_json(parameters, serialize_unknown=True)
        )
        self._wait_s = FIRST_WAIT_S
        #: The most that the request can cost.
        self._most = self._cost(
            RequestUsage(input_tokens=input_tokens, output_tokens=self._max_output_tokens())
        )

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[tuple[Reservation, Permit]]:
        """Wait until the request may be made; what is not settled in the block comes back."""
        timeout = self._settings.get("timeout")
        permit = await self._context.limits.aacquire(
            self._provider,
            self._model,
            key=self._key,
            tokens=self._most.tokens,
            time_limit_s=float(timeout) if isinstance(timeout, int | float) else TIME_LIMIT_S,
        )
        reservation = None
        try:
            reservation = await asyncio.to_thread(self._context.spending.reserve_cost, self._most)
            yield reservation, permit
        finally:
            await asyncio.to_thread(_give_back, reservation, permit)

    async def settle(self, reservation: Reservation, permit: Permit, usage: RequestUsage) -> None:
        """Count what the finished request has used; the most that it can have, where its provider says what cannot be."""
        reported = (
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
        )
        cost = self._cost(usage) if all(0 <= number <= MOST_TOKENS for number in reported) else self._most
        await asyncio.to_thread(reservation.settle_cost, cost)
        await asyncio.to_thread(permit.release, tokens=cost.tokens)

    async def refused(self, error: ModelAPIError, *, stands_in: bool) -> None:
        """The provider gave an error: raise it, or hold everybody back where it is only busy."""
        busy = isinstance(error, ModelRateLimitError) or (
            isinstance(error, ModelHTTPError) and error.status_code in _BUSY
        )
        if not busy:
            raise error
        wait_s = (
            error.retry_after if error.retry_after is not None and error.retry_after >= 0 else self._wait_s
        )
        self._wait_s = min(self._wait_s * 2, LONGEST_WAIT_S)
        limits = self._context.limits
        await asyncio.to_thread(limits.hold_back, self._provider, self._model, after_s=wait_s, key=self._key)
        if stands_in:
            raise error

    def _max_output_tokens(self) -> int:
        return int(self._settings.get("max_tokens") or MAX_OUTPUT_TOKENS)

    def _cost(self, usage: RequestUsage) -> Cost:
        try:
            return cost_of(
                self._model,
                provider=self._provider,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cache_read_tokens=usage.cache_read_tokens,
                cache_write_tokens=usage.cache_write_tokens,
                must_be_known=self._context.spending.limits_money,
            )
        except InputError as error:
            raise ModelFailed(self._context.agent, str(error)) from None


def _says_why_it_ended(response: ModelResponse) -> bool:
    """Whether a stream gave the reason for its end; one without is half an answer, in however good order it ended.

    Some clients put `stop` where a provider gave none, so that the provider's own word counts.
    """
    if response.provider_url is None or response.finish_reason == "content_filter":
        return True  # a function of this process; a refusal, which clients mark in words of their own
    return response.state == "suspended" or "finish_reason" in (response.provider_details or {})


def _give_back(reservation: Reservation | None, permit: Permit) -> None:
    try:
        if reservation is not None:
            reservation.release()
    finally:
        permit.release()
