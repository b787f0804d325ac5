"""An agent that speaks the Agent Client Protocol over standard input and output: one process for a whole run.

What it does becomes the status of its session. When a tool of it needs permission, the parent is asked, or a person.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar, cast

import acp
from acp import schema
from acp.core import ClientSideConnection
from acp.schema import PermissionOption

from orchestrator.errors import AgentProgramError, InputError, LimitExceeded, NoReply, WouldDeadlock
from orchestrator.log import get_logger
from orchestrator.transcript.model import begin
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.printing import Tail, note
from orchestrator.worker.executors.command.conversation import Memory
from orchestrator.worker.executors.command.process import LOOK_S, AgentProcess
from orchestrator.worker.executors.command.reading import Complaint, LiveStatus, Usage, Watch
from orchestrator.worker.executors.command.sandbox import Place
from orchestrator.worker.executors.text import Finished, TextAnswer, finish

_log = get_logger()

_YES: Final = frozenset({"allow", "yes", "y", "ok", "okay", "approve", "approved", "allowed", "true"})


class Permissions:
    """Decides on the tools of one agent's program, in one run."""

    def __init__(
        self, context: Context, rule: Literal["ask", "approve", "allow", "deny"], live: LiveStatus
    ) -> None:
        self._context = context
        self._rule = rule
        self._live = live

    def decide(
        self, tool: str, arguments: object, options: Sequence[PermissionOption]
    ) -> PermissionOption | None:
        """Return the option that the program gets; None if its request is cancelled.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: the run cannot go on.
        """
        if self._rule == "deny":
            return choose("deny", options)
        if self._rule == "allow":
            return choose("allow", options) or choose("allow always", options)
        ask_person = self._rule == "approve" or not self._context.parent
        self._live("tool", f"waits for {'your approval' if ask_person else 'permission'}: {tool}")
        try:
            reply = self._ask_person(tool, arguments) if ask_person else self._ask_parent(tool, options)
        except (NoReply, InputError, LimitExceeded, WouldDeadlock) as error:
            _log.warning("permission-denied", session=self._context.session, tool=tool, reason=str(error))
            reply = "deny"
        return choose(reply, options)

    def _ask_parent(self, tool: str, options: Sequence[PermissionOption]) -> str:
        names = ", ".join(f"{option.name!r}" for option in options)
        return self._context.ask(
            f"May I use {tool}? Reply with one of: {names}; or with allow or deny.",
            kind="clarification",
            context={"tool": tool},
        )

    def _ask_person(self, tool: str, arguments: object) -> str:
        """`allow` or `deny`. The program holds its slot meanwhile: what it has in mind ends with its process."""
        approvals = self._context.approvals
        given = (
            arguments if isinstance(arguments, dict) else {} if arguments is None else {"input": arguments}
        )
        approval, _ = approvals.post(tool, given)
        decision = approvals.await_decision(approval, timeout_s=self._context.patience_s)
        if decision is None and not approvals.withdraw(
            approval, "nobody answered before the run's time was nearly up"
        ):
            decision = approvals.await_decision(approval, timeout_s=0)  # somebody has, just now
        return "allow" if decision is not None and decision.approved else "deny"


def choose(reply: str, options: Sequence[PermissionOption]) -> PermissionOption | None:
    """Return the option that a reply names: by name, by id, or by its first word; None if the request is cancelled.

    A reply that names no option and does not begin with consent is no consent. "Always" counts right after it.
    """
    words = reply.strip().casefold()
    for option in options:
        if words in (option.name.casefold(), option.option_id.casefold()):
            return option
    first = re.match(r"(\w+)([\s,]+always\b)?", words)
    wanted = ["reject_once", "reject_always"]
    if first is not None and first[1] in _YES:
        wanted = ["allow_always", "allow_once"] if first[2] else ["allow_once"]
    for kind in wanted:
        for option in options:
            if option.kind == kind:
                return option
    return None


#: Seconds that an agent may take to say what it can do.
_GREETING_S: Final = 60.0

T = TypeVar("T")


def converse(context: Context, place: Place, memory: Memory, prompt: str) -> Finished:
    """Start the agent, give it the prompt, and make a result of what it answers.

    Raises:
        AgentProgramError: it cannot be run, breaks the protocol, refuses, or ends too early.
        NoResponse, ClaimLost, SessionStopped, ServerUnavailable: as for every agent of text.
    """
    options = place.options
    with (
        asyncio.Runner() as runner,
        place.start([*options.command, *options.start, *options.args]) as process,
    ):
        conversation = _Conversation(context, place, memory, process)

        def say(text: str) -> TextAnswer:
            return runner.run(conversation.say(text))

        try:
            return finish(context, say(prompt), say)
        finally:
            # Before the loop ends: its tasks read what the process prints.
            runner.run(conversation.close())


class _Conversation:
    def __init__(self, context: Context, place: Place, memory: Memory, process: AgentProcess) -> None:
        self._context = context
        self._place = place
        self._memory = memory
        self._process = process
        live = LiveStatus(context)
        self._complaint = Complaint()
        self._watch = Watch(context, place.options, process, live)
        self._client = _Client(context, place, live, self._watch)
        self._connection: ClientSideConnection | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._retells = False

    async def say(self, text: str) -> TextAnswer:
        """Send a prompt and return the answer of that turn."""
        talking = asyncio.create_task(self._turn(text))
        try:
            while not (await asyncio.wait({talking}, timeout=LOOK_S))[0]:
                if self._client.asks:  # it waits for us
                    self._watch.heard()
                await asyncio.to_thread(self._watch.look)
            return await talking
        except (acp.RequestError, ConnectionError, TimeoutError) as error:
            self._context.check()
            raise AgentProgramError(self._place.options.command[0], self._why(error)) from error
        finally:
            talking.cancel()

    def _why(self, error: Exception) -> str:
        if isinstance(error, acp.RequestError):
            detail = f": {error.data}" if error.data else ""
            return f"it refused a request: {error}{detail}"
        if isinstance(error, TimeoutError):
            return f"it did not greet within {_GREETING_S:g} s{self._complaint.suffix()}"
        ended = self._process.end()
        how = f" ({ended})" if ended is not None else ""
        return f"it ended before its answer{how}{self._complaint.suffix()}"

    async def _turn(self, text: str) -> TextAnswer:
        memory = self._memory
        if self._connection is None:
            self._connection = await asyncio.wait_for(self._connect(), _GREETING_S)
        self._watch.heard()
        self._client.begin()
        prompt = memory.retold(text) if self._retells else text
        spending = self._context.spending
        reserved = await asyncio.to_thread(lambda: spending.reserve(requests=1))
        turn = begin(self._context.turns, prompt=prompt)
        before = Usage(memory.input_tokens, memory.output_tokens, memory.cost_usd)
        reply = await self._connection.prompt(session_id=memory.conversation, prompt=[acp.text_block(prompt)])
        self._count(reply)
        used = memory.used_since(before)
        await asyncio.to_thread(
            lambda: reserved.settle(
                input_tokens=used.input_tokens, output_tokens=used.output_tokens, usd=used.cost_usd
            )
        )
        answer = self._client.answer.text()
        turn.end(answer, used, cut_off=reply.stop_reason == "max_tokens")
        note(f"{answer.rstrip()}\n")
        if self._retells:
            memory.remember(text, answer)
        if reply.stop_reason in ("refusal", "cancelled"):
            how = {"refusal": "the model refused"}.get(reply.stop_reason, "the turn was cancelled")
            raise AgentProgramError(self._place.options.command[0], how)
        return TextAnswer(text=answer, cut_off=reply.stop_reason == "max_tokens")

    async def _connect(self) -> ClientSideConnection:
        """Greet the agent, and take up the conversation or begin one."""
        options, folder, memory = self._place.options, str(self._place.folder), self._memory
        reader, writer = await self._streams(options.max_output_bytes)
        connection = acp.connect_to_agent(cast(acp.Client, self._client), writer, reader)
        greeting = await connection.initialize(
            protocol_version=acp.PROTOCOL_VERSION,
            client_capabilities=schema.ClientCapabilities(),
            client_info=schema.Implementation(name="agent-orchestra", version="1"),
        )
        can = greeting.agent_capabilities
        # An agent that cannot load a conversation gets the text of it instead.
        self._retells = not (can is not None and can.load_session)
        if memory.conversation and not self._retells:
            await connection.load_session(cwd=folder, session_id=memory.conversation, mcp_servers=[])
        else:
            memory.conversation = (await connection.new_session(cwd=folder, mcp_servers=[])).session_id
            self._used_before = Usage(memory.input_tokens, memory.output_tokens, memory.cost_usd)
        return connection

    #: What conversations before this one have used: an agent reports the sum of its own conversation.
    _used_before = Usage()

    def _count(self, reply: schema.PromptResponse) -> None:
        memory, used = self._memory, replace(self._used_before)
        memory.turns += 1
        if reply.usage is not None:
            used.add("input_tokens", reply.usage.input_tokens)
            used.add("output_tokens", reply.usage.output_tokens)
            memory.input_tokens, memory.output_tokens = used.input_tokens, used.output_tokens
        if self._client.cost_usd:
            used.add("cost_usd", self._client.cost_usd)
            memory.cost_usd = used.cost_usd

    async def _streams(self, limit: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop, process = asyncio.get_running_loop(), self._process
        reader = asyncio.StreamReader(limit=limit)
        output, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        errors, _ = await loop.connect_read_pipe(
            lambda: _StandardError(self._complaint, self._watch), process.stderr
        )
        words, flow = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), process.stdin
        )
        self._transports = [output, errors, words]
        return reader, asyncio.StreamWriter(words, flow, None, loop)

    async def close(self) -> None:
        """End the connection and kill the process."""
        self._process.kill()
        if self._connection is not None:
            with suppress(OSError, ConnectionError, TimeoutError):
                await asyncio.wait_for(self._connection.close(), 5)
        for transport in self._transports:
            transport.close()
        await asyncio.sleep(0)


async def _beside(work: Callable[[], T]) -> T:
    """Return the result of ``work``, run in a thread that nobody waits for at the end: a parent may never reply.

    Once its run has ended, the thread ends at its next call of the ledger.
    """
    done: Future[T] = Future()

    def run() -> None:
        done.set_running_or_notify_cancel()
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  (it is raised where it is waited for)
            done.set_exception(error)

    threading.Thread(target=run, name="permission", daemon=True).start()
    return await asyncio.wrap_future(done)


class _StandardError(asyncio.Protocol):
    def __init__(self, complaint: Complaint, watch: Watch) -> None:
        self._complaint = complaint
        self._watch = watch

    def data_received(self, data: bytes) -> None:
        self._watch.heard()
        self._complaint.add(data)


class _Client:
    """Handler of the agent's requests and notifications. Files and terminals are not offered: it has its own.

    The library refuses and ignores what has no method here.
    """

    def __init__(self, context: Context, place: Place, live: LiveStatus, watch: Watch) -> None:
        self._permissions = Permissions(context, place.options.permissions, live)
        self._max_bytes = place.options.max_output_bytes
        self._live = live
        self._watch = watch
        self._listens = False
        #: Questions of the agent that nobody has answered yet.
        self.asks = 0
        self.answer = Tail(self._max_bytes)
        self.cost_usd = 0.0

    def begin(self) -> None:
        """Collect the answer of the next turn. What came before belongs to an old conversation."""
        self._listens = True
        self.answer = Tail(self._max_bytes)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Show what the agent says, thinks or does, and collect its answer."""
        self._watch.heard()
        if not self._listens:
            return
        match update:
            case schema.AgentMessageChunk(content=schema.TextContentBlock(text=text)):
                self.answer.add(text.encode(errors="replace"))
                self._live("piece", text)
            case schema.AgentThoughtChunk(content=schema.TextContentBlock(text=text)):
                self._live("thinking", text)
            case schema.ToolCallStart(title=title):
                self._live("tool", title)
            case schema.AgentPlanUpdate(entries=entries):
                now = [entry.content for entry in entries if entry.status == "in_progress"]
                self._live("text", "; ".join(now))
            case schema.UsageUpdate(cost=schema.Cost(amount=amount, currency="USD")):
                self.cost_usd = amount
            case _:
                return

    async def request_permission(
        self,
        session_id: str,
        tool_call: schema.ToolCallUpdate,
        options: list[schema.PermissionOption],
        **_: Any,
    ) -> schema.RequestPermissionResponse:
        """May the agent use a tool?"""
        self.asks += 1
        try:
            tool = tool_call.title or tool_call.kind or "a tool"
            chosen = await _beside(lambda: self._permissions.decide(tool, tool_call.raw_input, options))
        finally:
            self.asks -= 1
            self._watch.heard()
        if chosen is None:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        outcome = schema.AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        return schema.RequestPermissionResponse(outcome=outcome)
