"""The client: work in, answers and trees out, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from orchestrator import AsyncClient, Client
from orchestrator.client.waiting import Waiting
from orchestrator.config.settings import load_settings
from orchestrator.errors import (
    EmptyPrompt,
    InputError,
    KeyInUse,
    ServerUnavailable,
    SessionFailed,
    SessionStopped,
    UnknownAgent,
    UnknownSession,
    WrongState,
)
from orchestrator.ledger import SessionState
from orchestrator.worker.context.context import Context
from tests.integration.client.conftest import in_background
from tests.kit import Kit

pytestmark = pytest.mark.usefixtures("solo")


def test_the_answer_is_waited_for(kit: Kit, client: Client) -> None:
    handle = client.submit("solo", "hello")
    worker = in_background(lambda: kit.play(handle.id))
    assert handle.result(timeout_s=90) == "hello"
    assert handle.session().state is SessionState.FINISHED
    worker.join()


def test_a_session_that_is_resumed_before_its_answer_is_read_is_waited_for_again(
    kit: Kit, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is not the empty text."""
    at_work, may_end = threading.Event(), threading.Event()

    def solo(ctx: Context) -> str:
        if ctx.cause != "start":
            at_work.set()
            assert may_end.wait(30)
        return ctx.prompt

    kit.agent("solo")(solo)
    session = kit.begin("solo", "hello")
    answering, look = client.answering(session), Waiting.step
    workers = []

    def resume_after_the_look(waiting: Waiting, **how: Any) -> Any:
        monkeypatch.undo()
        found = look(waiting, **how)
        client.resume(session, "again")
        workers.append(in_background(lambda: kit.play(session)))
        assert at_work.wait(30)
        return found

    monkeypatch.setattr(Waiting, "step", resume_after_the_look)
    assert answering.step() is None
    may_end.set()
    workers[0].join()
    assert answering.step() == "again"


def test_waiting_is_woken_by_the_end_of_the_session(kit: Kit, client: Client) -> None:
    """Not at the next look, a quarter of a second later."""
    late = []
    for _ in range(5):
        dispatch = kit.start(client.submit("solo", "hello").id)
        ended = []

        def finish(dispatch: Any = dispatch, ended: list[float] = ended) -> None:
            time.sleep(0.1)
            kit.execute(dispatch)
            ended.append(time.monotonic())

        worker = in_background(finish)
        client.wait(dispatch.session, timeout_s=90)
        seen = time.monotonic()
        worker.join()
        late.append(seen - ended[0])
    assert sorted(late)[2] < 0.1


def test_the_same_key_is_the_same_session(kit: Kit, client: Client) -> None:
    first, second = (client.submit("solo", "once", key="k") for _ in range(2))
    assert first.id == second.id
    assert client.submit("solo", "once", key="other").id != first.id
    assert len(client.sessions()) == 2


def test_bad_submissions_are_refused_and_leave_nothing(kit: Kit, client: Client) -> None:
    with pytest.raises(UnknownAgent, match=r"no agent named 'nobody' is registered \(registered: solo\)"):
        client.submit("nobody", "x")
    with pytest.raises(UnknownAgent):
        client.submit("operator", "x")
    with pytest.raises(EmptyPrompt, match="the prompt for agent 'solo' is empty"):
        client.submit("solo", " \n")
    for wrong in ({"title": 7}, {"key": 7}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} = 7 is not text; give a str"):
            client.submit("solo", "x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="prompt = 7 is not text; give a str"):
        client.submit("solo", 7)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="title has 16385 bytes, and at most 16384 are allowed"):
        client.submit("solo", "x", title="x" * 16_385)
    with pytest.raises(InputError, match=r"reply = \['x'\] is not text; give a str"):
        client.reply("ask_" + "0" * 38, ["x"])  # type: ignore[arg-type]
    assert client.sessions() == []


def test_failures_are_raised(kit: Kit, client: Client) -> None:
    @kit.agent("bad")
    def bad(ctx: Context) -> None:
        raise ValueError("no luck")

    session = kit.begin("bad", "x")
    with pytest.raises(SessionFailed, match="no luck"):
        client.result(session)


def test_a_session_that_never_ran_is_stopped_at_once(kit: Kit, client: Client) -> None:
    session = client.submit("solo", "x").id
    assert client.stop(session, "not needed").outcome == "ended"
    assert client.stop(session).outcome == "over"
    with pytest.raises(SessionStopped, match="not needed"):
        client.result(session)
    with pytest.raises(WrongState):
        client.resume(session, "go on")


def test_waiting_ends_at_its_time(kit: Kit, client: Client) -> None:
    session = client.submit("solo", "x").id
    with pytest.raises(TimeoutError, match=f"session {session} is pending after 0.1 s"):
        client.wait(session, timeout_s=0.1)
    assert client.answer(session) == ""


def test_a_resumed_session_is_waited_for_until_the_prompt_is_dealt_with(kit: Kit, client: Client) -> None:
    session = kit.begin("solo", "first")
    item = client.resume(session, "second", key="k")
    assert client.resume(session, "second", key="k") == item
    with pytest.raises(KeyInUse, match="another prompt under the same key"):
        client.resume(session, "third", key="k")
    worker = in_background(lambda: kit.play(session))
    client.wait(session, timeout_s=90, item=item)
    assert client.answer(session) == "second"
    worker.join()
    with pytest.raises(EmptyPrompt):
        client.resume(session, "")
    with pytest.raises(InputError, match="prompt = 7 is not text; give a str"):
        client.resume(session, 7)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="key = 7 is not text; give a str"):
        client.resume(session, "x", key=7)  # type: ignore[arg-type]


def test_a_tree_lists_parents_before_children(kit: Kit, client: Client, lead: None) -> None:
    root = kit.begin("lead", "x")
    first, second = kit.children(root)
    assert [member.id for member in client.tree(root)] == [root, first.id, second.id]
    assert [member.id for member in client.tree(second.id)] == [second.id]


def test_watching_shows_the_tree_until_it_is_over(kit: Kit, client: Client, lead: None) -> None:
    root = client.submit("lead", "x").id

    def work() -> None:
        kit.play(root)
        kit.end_children(root)

    watching = client.watch(root, timeout_s=90)
    pictures = [next(watching)]
    worker = in_background(work)
    pictures += watching
    worker.join()
    assert [member.state for member in pictures[0]] == [SessionState.PENDING]
    assert [member.state for member in pictures[-1]] == [SessionState.FINISHED] * 3


def test_the_history_tells_what_happened_in_order(kit: Kit, client: Client, lead: None) -> None:
    root = kit.begin("lead", "x")
    kit.end_children(root)
    what = [event.what for event in client.history(root)]
    assert what[:2] == ["launched", "run"]
    assert sorted(what) == sorted(
        [
            "launched",
            "run",
            "delegated",
            "delegated",
            "run ended",
            "callback",
            "callback",
            "run",
            "run ended",
            "ended",
        ]
    )
    assert [len(run.items) for run in client.runs(root)] == [0, 2]


def test_unknown_sessions_are_said_to_be_unknown(client: Client) -> None:
    for look in (client.session, client.tree, client.stop, client.history, client.result):
        with pytest.raises(UnknownSession, match="no session 'ses_nowhere' is in this ledger"):
            look("ses_nowhere")


def test_agents_are_listed(kit: Kit, client: Client) -> None:
    assert [record.name for record in client.agents()] == ["solo"]


def test_a_server_that_goes_away_is_one_clear_error(start_valkey: Callable[..., Any], tmp_path: Any) -> None:
    server = start_valkey(durable=False)
    client = Client(load_settings(redis_url=server.url, data=tmp_path / "data"))
    server.kill()
    with pytest.raises(ServerUnavailable, match="cannot reach Redis at unix://"):
        client.sessions()


def test_asyncio_has_every_method_of_the_client(kit: Kit) -> None:
    def public(of: type) -> set[str]:
        return {name for name, value in vars(of).items() if callable(value) and not name.startswith("_")}

    # Steps of waiting are for those who cannot await.
    assert public(AsyncClient) == public(Client) - {
        "answer",
        "answering",
        "step",
        "stopping",
        "stream_step",
        "waiting",
        "watching",
    }
    for name in public(AsyncClient):
        theirs, ours = getattr(Client, name), getattr(AsyncClient, name)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_asyncio_connects_when_it_is_first_used_and_not_in_the_event_loop(
    kit: Kit, start_valkey: Callable[..., Any], tmp_path: Path
) -> None:
    """A server that hangs does not hold up the loop, and one that is away is said to be when something is asked of it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()

        async def use() -> tuple[float, int, list[str]]:
            began = time.monotonic()
            hanging = AsyncClient(redis_url=f"unix://{tmp_path}/silent", data=tmp_path / "data")
            missing = AsyncClient(redis_url=f"unix://{tmp_path}/missing", data=tmp_path / "data")
            took = time.monotonic() - began
            asking = asyncio.create_task(hanging.sessions())
            ticks = 0
            while ticks < 5:
                await asyncio.sleep(0.01)
                ticks += 1
            assert not asking.done()
            silent.shutdown(socket.SHUT_RDWR)  # who waits in accept() would keep it open to another try
            silent.close()
            for connection in accepted:
                connection.close()
            asking.cancel()
            with pytest.raises(ServerUnavailable):
                await missing.sessions()
            await missing.close()
            plain = AsyncClient(kit.settings)
            found = [record.name for record in await plain.agents()]
            await plain.close()
            return took, ticks, found

        accepted: list[socket.socket] = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    accepted.append(silent.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        took, ticks, found = asyncio.run(use())
    assert (ticks, found) == (5, ["solo"])
    assert took < 0.5


def test_asyncio_leaves_the_threads_of_the_event_loop_to_the_program(kit: Kit) -> None:
    """The loop resolves names there: a program that awaits a hundred sessions must still reach its own servers."""

    async def use() -> None:
        free = threading.Event()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        blocked = asyncio.create_task(asyncio.to_thread(free.wait, 20))
        async with AsyncClient(kit.settings) as client:
            handle = await asyncio.wait_for(client.submit("solo", "hello"), 15)
            with pytest.raises(TimeoutError, match=handle.id):
                await handle.result(timeout_s=0)
        assert not blocked.done()
        free.set()
        await blocked

    asyncio.run(use())


def test_asyncio_waits_without_blocking(kit: Kit) -> None:

    async def use() -> tuple[str, int, int, int]:
        async with AsyncClient(kit.settings) as client:
            handle = await client.submit("solo", "hello")
            ticks = 0

            async def play() -> None:
                nonlocal ticks
                while ticks < 3:  # which takes others that wait without blocking
                    await asyncio.sleep(0.01)
                    ticks += 1
                await asyncio.to_thread(kit.play, handle.id)

            playing = asyncio.create_task(play())
            answer = await handle.result(timeout_s=90)
            pictures = [picture async for picture in client.watch(handle.id, timeout_s=90)]
            await playing
            await handle.session()
            return answer, len(pictures), len(await client.tree(handle.id)), ticks

    answer, pictures, members, ticks = asyncio.run(use())
    assert (answer, pictures, members) == ("hello", 1, 1)
    assert ticks == 3


def test_a_cancelled_wait_ends_soon(kit: Kit) -> None:

    async def use() -> float:
        async with AsyncClient(kit.settings) as client:
            handle = await client.submit("solo", "hello")
            waiting = asyncio.create_task(handle.result())
            await asyncio.sleep(0.1)
            began = time.monotonic()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return began

    began = asyncio.run(use())
    assert time.monotonic() - began < 5
