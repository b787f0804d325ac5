"""The client for asyncio: every call runs in a thread, so that the event loop never waits for Redis."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar, overload

from orchestrator.client.client import Client, SessionHandle
from orchestrator.config.settings import Settings
from orchestrator.ledger import Session
from orchestrator.ledger.live_text import LiveEvent
from orchestrator.policy.response_tag import typed

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: Threads of one client. A call that waits has one for a quarter of a second at a time.
_THREADS: Final = 64


def _in_thread(
    method: Callable[Concatenate[Client, P], R],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]]:
    """Return a method of `Client` as a coroutine."""

    @wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._run(method, await self._client(), *args, **kwargs)

    return call


def _in_thread_submitting(
    method: Callable[Concatenate[Client, P], SessionHandle],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, AsyncSessionHandle]]:
    """Return a method of `Client` that submits, as a coroutine."""
    submit = _in_thread(method)

    @wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncSessionHandle:
        handle = await submit(self, *args, **kwargs)
        return AsyncSessionHandle(handle.id, self, new=handle.new)

    signature = inspect.signature(method).replace(return_annotation="AsyncSessionHandle")
    vars(call)["__signature__"] = signature
    call.__module__ = __name__
    return call


@dataclass(frozen=True)
class AsyncSessionHandle:
    """A submitted session."""

    id: str  #: the session
    _client: AsyncClient
    #: False: the key was used before, for this session.
    new: bool = True

    @overload
    async def result(self, timeout_s: float | None = None) -> str: ...
    @overload
    async def result(self, timeout_s: float | None = None, *, type: type[T]) -> T: ...
    async def result(self, timeout_s: float | None = None, *, type: Any = str) -> Any:
        """As :meth:`Client.result`."""
        return await self._client.result(self.id, timeout_s=timeout_s, type=type)

    async def session(self) -> Session:
        """As :meth:`Client.session`."""
        return await self._client.session(self.id)


class AsyncClient:
    """`Client` for asyncio: the same methods, to be awaited. A cancelled wait ends within a quarter of a second.

    It connects when it is entered or first used, and raises then what the constructor of `Client` raises.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        redis_url: str | None = None,
        data: Path | str | None = None,
        on_outage: Callable[[str], None] | None = None,
    ) -> None:
        self._connect = partial(Client, settings, redis_url=redis_url, data=data, on_outage=on_outage)
        self._lock = threading.Lock()
        self._connected: Client | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="orchestra-client")

    async def _run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """As `asyncio.to_thread`, but the threads of the event loop are left to the program, which resolves names there."""
        in_context = partial(copy_context().run, call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, in_context)

    async def _client(self) -> Client:
        return await self._run(self._connect_once) if self._connected is None else self._connected

    def _connect_once(self) -> Client:
        with self._lock:
            found = self._connected
            if found is None:
                found = self._connected = self._connect()
            return found

    async def __aenter__(self) -> Self:
        await self._client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As :meth:`Client.close`."""
        if self._connected is not None:
            await self._run(self._connected.close)

    resume = _in_thread(Client.resume)
    reply = _in_thread(Client.reply)
    approvals = _in_thread(Client.approvals)
    approve = _in_thread(Client.approve)
    deny = _in_thread(Client.deny)
    stop = _in_thread(Client.stop)
    delete = _in_thread(Client.delete)
    attachment = _in_thread(Client.attachment)
    session = _in_thread(Client.session)
    sessions = _in_thread(Client.sessions)
    scheduled = _in_thread(Client.scheduled)
    tree = _in_thread(Client.tree)
    budgets = _in_thread(Client.budgets)
    parse_callbacks = _in_thread(Client.parse_callbacks)
    held_back = _in_thread(Client.held_back)
    questions = _in_thread(Client.questions)
    runs = _in_thread(Client.runs)
    history = _in_thread(Client.history)
    agents = _in_thread(Client.agents)
    open_text = _in_thread(Client.open_text)
    token = _in_thread(Client.token)
    completion = _in_thread(Client.completion)
    incomplete = _in_thread(Client.incomplete)
    serves = _in_thread(Client.serves)

    submit = _in_thread_submitting(Client.submit)
    fork = _in_thread_submitting(Client.fork)
    submit_plan = _in_thread_submitting(Client.submit_plan)

    @overload
    async def result(self, session: str, *, timeout_s: float | None = None) -> str: ...
    @overload
    async def result(self, session: str, *, timeout_s: float | None = None, type: type[T]) -> T: ...
    async def result(self, session: str, *, timeout_s: float | None = None, type: Any = str) -> Any:
        """As :meth:`Client.result`."""
        client = await self._client()
        answering = client.answering(session, timeout_s=timeout_s)
        while (answer := await self._run(client.step, answering)) is None:
            pass
        return typed(answer, type, what=f"session {session}")

    async def wait(self, session: str, *, timeout_s: float | None = None, item: str = "") -> Session:
        """As :meth:`Client.wait`."""
        client = await self._client()
        waiting = client.waiting(session, timeout_s=timeout_s, item=item)
        while (over := await self._run(client.step, waiting)) is None:
            pass
        return over

    async def stream(
        self, session: str, *, after: str = "", timeout_s: float | None = None
    ) -> AsyncIterator[LiveEvent]:
        """As :meth:`Client.stream`."""
        client = await self._client()
        loop = asyncio.get_running_loop()
        until = None if timeout_s is None else loop.time() + timeout_s
        while True:
            events, over = await self._run(client.stream_step, session, after)
            for event in events:
                after = event.position
                yield event
            if over and not events:
                return
            if until is not None and loop.time() >= until:
                raise TimeoutError(f"session {session} has not ended after {timeout_s:g} s")

    async def watch(self, session: str, *, timeout_s: float | None = None) -> AsyncIterator[list[Session]]:
        """As :meth:`Client.watch`."""
        client = await self._client()
        watching = client.watching(session, timeout_s=timeout_s)
        while not watching.over:
            picture = await self._run(client.step, watching)
            if picture is not None:
                yield picture
