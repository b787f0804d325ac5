"""Each request to a model within the limits of its provider and the budgets of its session.

The most that a request can cost is reserved before it, and what it did cost is counted after it. Where a budget counts, the
answer is limited to the tokens that were reserved for it, and reserved are at most those that are left. A provider that says
429 or 529, or that is away, holds back everybody who uses its key; the run waits, or frees its slot where that takes long,
and uses up no attempt.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, cast
from urllib.parse import urlsplit

import pydantic_core
from pydantic_ai import RunContext
from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError, ModelRateLimitError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
)
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from orchestrator.agents.options import LlmOptions
from orchestrator.errors import BudgetExceeded, ConfigurationError, InputError, ModelFailed
from orchestrator.log import get_logger
from orchestrator.policy.budget import MOST_TOKENS, Cost, most_tokens
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.spending import Permit, Reservation, cost_of
from orchestrator.worker.executors.llm.current import current_context
from orchestrator.worker.executors.llm.failures import BrokenAnswer, is_too_large
from orchestrator.worker.executors.llm.memory import shorter

#: Tokens of an answer at most, where the settings of the model do not say it (`max_tokens`).
MAX_OUTPUT_TOKENS: Final = 16_384
#: Tokens of an answer for which a request is worth making; it is not made where a budget leaves fewer.
LEAST_OUTPUT_TOKENS: Final = 16
#: Tokens that come to what is sent: around it, around each part of it, and where tools are described.
_FRAME, _PART_FRAME, _TOOLS_FRAME = 64, 16, 128
#: Those with which a provider describes tools to its models, by its price list.
_PROVIDERS_TOOLS_FRAME: Final = {"anthropic": 1024}
#: Providers whose servers may know the limit of an answer by its old word alone; and hosts that refuse the two together.
_OLD_WORD: Final = frozenset({"openai", "ollama", "vllm", "litellm"})
_NEW_WORD_ONLY: Final = ("openai.com", "azure.com")
#: Seconds that a request may take, where the settings of the model do not say it (`timeout`).
TIME_LIMIT_S: Final = 600
#: Seconds that a provider is left alone which does not say how long: at first, and at most.
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
#: HTTP: too many requests; overloaded. And: a gateway finds no server behind it, or a server is still loading its model.
_BUSY, _AWAY = (429, 529), (502, 503, 504)
#: Seconds between two requests to a provider that is away: a part of how long it has been so, at least and at most.
_AWAY_PART, _AWAY_LEAST_S, _AWAY_MOST_S = 0.25, 1.0, 15.0


_log = get_logger()


class Metered(WrapperModel):
    """A model whose requests are counted; outside of a run it is the model itself.

    ``stands_in``: whether another model follows, which is asked where this one is busy. ``options``: of the agent whose own
    model it is.
    """

    def __init__(self, wrapped: Model, *, stands_in: bool = False, options: LlmOptions | None = None) -> None:
        super().__init__(wrapped)
        self._stands_in = stands_in
        self._options = options

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
        asked = self._asked(context, messages, model_settings, model_request_parameters)
        while True:
            async with asked.admitted(stands_in=self._stands_in) as call:
                call.answer = await super().request(asked.messages, call.settings, model_request_parameters)
            if call.answer is not None:
                return call.answer

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        """As `request`, in pieces; what was streamed counts, however the stream ends."""
        if self._options is not None and not self._options.stream:
            answer = await self.request(messages, model_settings, model_request_parameters)
            yield CompletedStreamedResponse(
                answer, model_request_parameters=model_request_parameters, replay_events=True
            )
            return
        context = current_context()
        if context is None:
            async with super().request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream:
                yield stream
            return
        asked = self._asked(context, messages, model_settings, model_request_parameters)
        while True:
            async with asked.admitted(stands_in=self._stands_in) as call:
                call.streams = True
                async with super().request_stream(
                    asked.messages, call.settings, model_request_parameters, run_context
                ) as stream:
                    call.stream = stream
                    yield stream
                if not _says_why_it_ended(stream.get()):
                    raise BrokenAnswer(self.model_name)
            if call.stream is not None:
                return

    def _asked(
        self,
        context: Context,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> _Request:
        return _Request(self.wrapped, context, messages, settings, parameters, options=self._options)


@dataclasses.dataclass
class _Call:
    """A call of a model, and its result."""

    settings: ModelSettings
    reservation: Reservation
    #: The most tokens that its answer can have.
    output_tokens: int
    answer: ModelResponse | None = None
    streams: bool = False
    stream: StreamedResponse | None = None
    error: BaseException | None = None

    @property
    def received(self) -> ModelResponse | None:
        """The response received, also if it is incomplete."""
        return self.stream.get() if self.stream is not None else self.answer


class _Request:
    """A request to a model, until it is answered."""

    def __init__(
        self,
        model: Model,
        context: Context,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
        *,
        options: LlmOptions | None,
    ) -> None:
        self._prices = options.prices if options is not None else None
        #: The most tokens that the model takes and gives together.
        self._most_tokens = (options.context if options is not None else None) or MOST_TOKENS
        self._model = model
        self._context = context
        #: What is sent: all of them, or less where the model's context is too small for that.
        self.messages = messages
        self._shorter = shorter(messages)
        self._parameters = parameters
        #: The ledger gets a digest of it, never the key. Servers that want no key are told apart by their address.
        self._key = f"{getattr(getattr(model, 'client', None), 'api_key', '') or ''} {model.base_url or ''}"
        self._own: dict[str, Any] = dict(settings or {})
        self._settings: dict[str, Any] = {**(model.settings or {}), **self._own}
        self._input_tokens = 0
        self._wait_s = FIRST_WAIT_S
        self._away_since_ms = 0

    @asynccontextmanager
    async def admitted(self, *, stands_in: bool) -> AsyncIterator[_Call]:
        """Wait until the request may be made, and count it. A block that ends without an answer is to be entered again."""
        if not self._input_tokens:
            self._input_tokens = await asyncio.to_thread(self._count_input)
        timeout = self._settings.get("timeout")
        permit = await self._context.limits.aacquire(
            self._model.system,
            self._model.model_name,
            key=self._key,
            tokens=(await asyncio.to_thread(self._most, self._max_output_tokens())).tokens,
            time_limit_s=float(timeout) if isinstance(timeout, int | float) else TIME_LIMIT_S,
        )
        call: _Call | None = None
        try:
            call = await asyncio.to_thread(self._reserve)
            try:
                yield call
            except BaseException as error:
                call.error = error
                raise
        except ModelAPIError as error:
            if (
                call is None
                or call.received is not None
                or not (self._leaves_out(error) or await self._waits_for(error, stands_in=stands_in))
            ):
                raise
        finally:
            await asyncio.to_thread(self._settle, call, permit)

    # --- before it -------------------------------------------------------------------------------

    def _count_input(self) -> int:
        """Tokens of the request at most: of every text that is sent, and of what comes around it."""
        sent, parts = [], 0
        for message in ModelMessagesTypeAdapter.dump_python(self.messages, mode="json"):
            for part in message["parts"]:
                parts += 1
                sent += [*_texts(part.get("content")), *_texts(part.get("args")), part.get("tool_name") or ""]
        asked = self._parameters
        instructions = [part.content for part in asked.instruction_parts or ()]
        sent += instructions or [str(getattr(self.messages[-1], "instructions", None) or "")]
        tools = [*asked.function_tools, *asked.output_tools]
        described: list[Any] = [(tool.name, tool.description, tool.parameters_json_schema) for tool in tools]
        if asked.output_object is not None:
            described.append(asked.output_object.json_schema)
        sent.append(pydantic_core.to_json(described, serialize_unknown=True).decode())
        frame = _FRAME + _PART_FRAME * (parts + len(tools))
        if tools:
            frame += _TOOLS_FRAME + _PROVIDERS_TOOLS_FRAME.get(self._model.system, 0)
        return min(frame + sum(map(most_tokens, sent)), self._most_tokens)

    def _leaves_out(self, error: ModelAPIError) -> bool:
        """Return True if the request is to be made again without some older messages, for which its model has no
        room.
        """
        if not is_too_large(error):
            return False
        fewer = next(self._shorter, None)
        if fewer is None:
            return False
        _log.warning("memory-left-out", agent=self._context.agent, session=self._context.session)
        self.messages, self._input_tokens = fewer, 0
        return True

    def _max_output_tokens(self) -> int:
        most = self._settings.get("max_tokens", MAX_OUTPUT_TOKENS)
        if not isinstance(most, int) or most < 1:
            raise ConfigurationError(
                f"agent {self._context.agent!r}: max_tokens = {most!r} in its settings is not a number of tokens"
            )
        return min(most, self._most_tokens)

    def _most(self, output_tokens: int) -> Cost:
        """The most that the request can cost if its answer has so many tokens."""
        caches = any("cache" in name for name in self._settings)  # what is written to a cache costs more
        return self._cost(self._input_tokens, output_tokens, cache_write_tokens=self._input_tokens * caches)

    def _reserve(self) -> _Call:
        """Set aside what the call can cost, or with a shorter answer as much as is left.

        Raises:
            BudgetExceeded: not even the shortest answer fits.
        """
        output_tokens = self._max_output_tokens()
        least = min(output_tokens, LEAST_OUTPUT_TOKENS)
        reservation = None
        while reservation is None:
            try:
                most, model = self._most(output_tokens), self._model.model_name
                reservation = self._context.spending.reserve_cost(most, model=model)
            except BudgetExceeded as error:
                if error.resource == "requests" or output_tokens == least:
                    raise
                output_tokens = max(least, self._fitting(error, output_tokens))
        limited = not self._context.spending.limited.isdisjoint({"tokens", "nano"})
        return _Call(
            settings=self._settings_of(output_tokens if limited else self._settings.get("max_tokens")),
            reservation=reservation,
            output_tokens=output_tokens,
        )

    def _fitting(self, error: BudgetExceeded, too_many: int) -> int:
        """The most tokens of an answer that fit into what a budget has left."""
        low, high = 0, too_many - 1
        while low < high:
            middle = (low + high + 1) // 2
            cost = self._most(middle)
            fits = (cost.tokens if error.resource == "tokens" else cost.nano_usd) <= error.left
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _settings_of(self, max_tokens: int | None) -> ModelSettings:
        """The settings of the request. A client that tries again by itself would do so behind the budgets."""
        settings = dict(self._own)
        if "max_retries" not in self._model.unsupported_settings:
            settings["max_retries"] = 0
        if max_tokens:
            settings["max_tokens"] = max_tokens
            if self._may_know_old_word_only():
                extra = self._settings.get("extra_body")
                settings["extra_body"] = {
                    **(extra if isinstance(extra, dict) else {}),
                    "max_tokens": max_tokens,
                }
        return cast(ModelSettings, settings)

    def _may_know_old_word_only(self) -> bool:
        """Return True if the server may know the limit of an answer only as `max_tokens`, not as
        `max_completion_tokens`.
        """
        openai = sys.modules.get("pydantic_ai.models.openai")
        if openai is None or not isinstance(self._model, openai.OpenAIChatModel):
            return False
        host = urlsplit(self._model.base_url).hostname or ""
        return self._model.system in _OLD_WORD and not host.endswith(_NEW_WORD_ONLY)

    # --- after it --------------------------------------------------------------------------------

    def _settle(self, call: _Call | None, permit: Permit) -> None:
        """Count what a call has cost."""
        cost = Cost() if call is None else self._cost_of(call)
        try:
            if call is not None:
                call.reservation.settle_cost(cost)
        finally:
            permit.release(tokens=cost.tokens)

    def _cost_of(self, call: _Call) -> Cost:
        """Return the cost of a call: as its provider reports it, else estimated from what was sent and received."""
        response = call.received
        if response is None:
            return self._cost_without_answer(call)
        usage = response.usage
        said = (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
        if not all(0 <= number <= MOST_TOKENS for number in said):
            return _estimated(self._most(call.output_tokens))
        sent, received = usage.input_tokens, usage.output_tokens
        guessed = 0
        if not sent and not received:
            guessed = sent = self._input_tokens
        if (
            not usage.output_tokens or call.error is not None
        ):  # what is said of half an answer is said too early
            received = max(received, min(most_tokens(_text_of(response)), call.output_tokens))
            guessed += received - usage.output_tokens
        cost = self._cost(
            sent,
            received,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        return dataclasses.replace(cost, estimated=guessed)

    def _cost_without_answer(self, call: _Call) -> Cost:
        error = call.error
        if isinstance(error, ModelAPIError) and (_is_busy(error) or _how_away(error)):
            return Cost()  # nothing was done for it
        if isinstance(error, ModelHTTPError):
            return Cost(requests=1)
        # Of a stream nothing had come. Of an answer in one piece nobody knows how much of it there was.
        return _estimated(self._most(0 if call.streams else call.output_tokens))

    async def _waits_for(self, error: ModelAPIError, *, stands_in: bool) -> bool:
        """Hold back all requests to the provider after this error; return True if this request is to wait and try
        again.
        """
        away = _how_away(error)
        if away:
            wait_s = 0.0 if stands_in else await self._away_wait_s()
        elif _is_busy(error):
            wait_s, self._wait_s = self._wait_s, min(self._wait_s * 2, LONGEST_WAIT_S)
        else:
            return False
        if not wait_s:
            return False
        if error.retry_after is not None and error.retry_after >= 0:
            wait_s = error.retry_after
        provider, model, limits = self._model.system, self._model.model_name, self._context.limits
        await asyncio.to_thread(limits.hold_back, provider, model, after_s=wait_s, key=self._key, why=away)
        return not stands_in

    async def _away_wait_s(self) -> float:
        """Seconds until a provider that is away is asked again; 0: this request has waited for long enough."""
        context = self._context
        # A step of this request: a try that comes back for it knows since when it has waited.
        if not self._away_since_ms:
            self._away_since_ms = await context.astep("away", context.now_ms)
        waited_s = (await asyncio.to_thread(context.now_ms) - self._away_since_ms) / 1000
        if waited_s >= context.settings.provider_away_s:
            return 0.0
        return min(max(_AWAY_LEAST_S, waited_s * _AWAY_PART), _AWAY_MOST_S)

    def _cost(self, input_tokens: int, output_tokens: int, **cached: int) -> Cost:
        try:
            return cost_of(
                self._model.model_name,
                provider=self._model.system,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                must_be_known="nano" in self._context.spending.limited,
                prices=self._prices,
                **cached,
            )
        except InputError as error:
            raise ModelFailed(self._context.agent, str(error)) from None


def _is_busy(error: ModelAPIError) -> bool:
    """Return True if the provider has too many requests for now."""
    return isinstance(error, ModelRateLimitError) or (
        isinstance(error, ModelHTTPError) and error.status_code in _BUSY
    )


def _how_away(error: ModelAPIError) -> str:
    """Return how the provider is away, as text for people; empty if it is not."""
    if isinstance(error, ModelHTTPError) and error.status_code in _AWAY:
        return f"answers {error.status_code}"
    return "cannot be reached" if _was_not_sent(error) else ""


def _was_not_sent(error: BaseException | None) -> bool:
    return isinstance(error, ModelConnectionError) and error.phase in ("pool", "connect")


def _says_why_it_ended(response: ModelResponse) -> bool:
    """Return True if a stream gave a finish reason; without one it is incomplete, even if it ended in good order.

    Some clients put `stop` where a provider gave none, so the provider's own field counts.
    """
    if response.provider_url is None or response.finish_reason == "content_filter":
        return True  # a function of this process; a refusal, which clients mark in words of their own
    return response.state == "suspended" or "finish_reason" in (response.provider_details or {})


def _estimated(cost: Cost) -> Cost:
    return dataclasses.replace(cost, estimated=cost.tokens)


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, the names of its fields included."""
    match value:
        case str():
            yield value
        case dict():
            for name, inner in value.items():
                yield name
                yield from _texts(inner)
        case list():
            for inner in value:
                yield from _texts(inner)
        case None:
            pass
        case _:
            yield str(value)


def _text_of(response: ModelResponse) -> str:
    """Everything that the model wrote."""
    written = []
    for part in response.parts:
        if isinstance(part, TextPart | ThinkingPart):
            written.append(part.content)
        elif isinstance(part, ToolCallPart):
            written += [part.tool_name, part.args_as_json_str()]
    return " ".join(written)
