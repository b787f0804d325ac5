"""The console as an ASGI application: routes, the guard before them, and the address it is mounted at."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlencode

import redis
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.config.settings import Settings, load_settings
from orchestrator.console import actions, pages, reports, transcripts
from orchestrator.console.access import COOKIE, COOKIE_S, Access, Person, Rules, refuses
from orchestrator.console.probes import OPEN, PATHS, StackProbes
from orchestrator.console.rendering import make_templates
from orchestrator.console.stack import Stack
from orchestrator.errors import NoStack, OrchestraError, ServerUnavailable, UnknownSession
from orchestrator.ids import is_session_id
from orchestrator.machine import isoformat

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "x-frame-options": "DENY",
}
#: Bytes of a form: a prompt may be long.
_MOST_BYTES: Final = 2_000_000
#: Outcomes of actions that are kept for the page that shows them.
_OUTCOMES: Final = 200
#: Seconds between two looks at whether anything changed, and between two ticks if nothing did.
_LOOK_EVERY_S: Final = 1.0
_TICK_EVERY_S: Final = 15.0
#: The share of a core that making open pages may take together while everything changes, and the processor seconds that they
#: may use at once after a time in which little changed. Requests and answers around them cost about as much again.
_PAGES_SHARE: Final = 0.002
_PAGES_SAVED_S: Final = 0.04

_AWAY: Final = (redis.RedisError, OSError, ServerUnavailable, NoStack)


def rules_of(settings: Settings) -> Rules:
    """Return who may use the console, as the settings say; any host name is fine, as another application has it."""
    return Rules(
        folder=settings.data / "console",
        token=settings.console_token or "",
        proxies=settings.console_proxies,
        user_header=settings.console_user_header,
        operators=settings.console_operators,
    )


class Pace:
    """Decide how often open pages are told to bring themselves up to date: at once where little changes, else the more that
    costs, the less often."""

    def __init__(self) -> None:
        self.open = 0
        #: Processor seconds that a page takes, the latest counting most.
        self.cost_s = 0.0
        #: Processor seconds that pages have saved, and until when that is counted.
        self._saved_s = _PAGES_SAVED_S
        self._counted_at = time.monotonic()

    @property
    def interval_s(self) -> float:
        """Seconds between two ticks of one page at least."""
        if self._save() > 0:
            return _LOOK_EVERY_S
        return min(_TICK_EVERY_S, max(_LOOK_EVERY_S, self.open * self.cost_s / _PAGES_SHARE))

    def note(self, spent_s: float) -> None:
        """Take in what a page took."""
        self.cost_s += 0.2 * (spent_s - self.cost_s)
        self._saved_s = max(-_PAGES_SAVED_S, self._save() - spent_s)

    def _save(self) -> float:
        now = time.monotonic()
        grown = (now - self._counted_at) * _PAGES_SHARE
        self._saved_s, self._counted_at = min(_PAGES_SAVED_S, self._saved_s + grown), now
        return self._saved_s


class Console:
    """The console of one stack."""

    def __init__(self, stack: Stack, access: Callable[[], Access]) -> None:
        self.stack = stack
        self.probes = StackProbes(stack)
        self.pace = Pace()
        self._make_access = access
        self._access: Access | None = None
        self._outcomes: OrderedDict[str, list[actions.Outcome]] = OrderedDict()
        self._templates = make_templates()

    @property
    def access(self) -> Access:
        """Decide who may use it; made when it is first needed, as that writes into the data folder."""
        if self._access is None:
            self._access = self._make_access()
        return self._access

    def application(self) -> ASGIApp:
        """Return the application, behind its guard."""
        shown: list[tuple[str, str, Callable[..., pages.Shown]]] = [
            ("/", "triage.html", pages.triage),
            ("/sessions", "sessions.html", pages.sessions),
            ("/sessions/{name}", "session.html", pages.session),
            ("/sessions/{name}/transcript", "transcript.html", transcripts.transcript),
            ("/trees/{name}", "tree.html", pages.tree),
            ("/trees/{name}/flame", "flame.html", pages.flame),
            ("/asked", "asked.html", pages.asked),
            ("/dead", "dead.html", pages.letters),
            ("/dead/{name}", "letter.html", pages.letter),
            ("/agents", "agents.html", pages.agents),
            ("/audit", "audit.html", pages.audit),
            ("/audit/conversations/{name}", "conversation.html", pages.conversation),
            ("/audit/messages/{name}", "message.html", pages.message),
        ]
        routes = [
            *(Route(path, self._page(template, read), methods=["GET"]) for path, template, read in shown),
            Route("/audit/report", self._page("report.html", reports.report, paced=False), methods=["GET"]),
            Route("/audit/report.html", self._report, methods=["GET"]),
            Route("/do/{action}", self._act, methods=["POST"]),
            Route("/audit/export", self._export, methods=["POST"]),
            Route("/events", self._events, methods=["GET"]),
            Route("/enter", self._enter, methods=["POST"]),
            *(Route(path, self._probed, methods=["GET"]) for path in (*PATHS, "/readyz/{service}")),
            Mount("/static", StaticFiles(directory=str(Path(__file__).parent / "static"))),
        ]
        return Guard(
            Starlette(routes=routes, exception_handlers={404: self._not_found, 500: self._fault}), self
        )

    # --- answers -------------------------------------------------------------------------------------

    def render(self, request: Request, template: str, status: int = 200, **shown: Any) -> HTMLResponse:
        """Return a page."""
        base = request.scope.get("root_path", "").rstrip("/")

        def link(path: str, **query: object) -> str:
            found = urlencode({name: value for name, value in query.items() if value not in ("", None, 0)})
            return f"{base}{quote(path)}{f'?{found}' if found else ''}"

        person: Person | None = request.scope.get("orchestra.person")
        outcomes = self._outcomes.get(request.query_params.get("outcome", ""), [])
        text = self._templates.get_template(template).render(
            base=base,
            link=link,
            person=person,
            acts=person is not None and person.acts,
            path=request.scope["path"][len(base) :] or "/",
            query=dict(request.query_params),
            outcomes=outcomes,
            now_ms=time.time_ns() // 1_000_000,
            **shown,
        )
        return HTMLResponse(text, status_code=status, headers={"cache-control": "no-store"})

    def _page(
        self, template: str, read: Callable[..., pages.Shown], *, paced: bool = True
    ) -> Callable[[Request], Any]:
        """Return the answer to requests for a page; without ``paced`` it is one that does not bring itself up to date."""

        def shown(request: Request) -> Response:
            began = time.thread_time()
            answer = made(request)
            if paced:
                self.pace.note(time.thread_time() - began)
            return answer

        def made(request: Request) -> Response:
            named = request.path_params.get("name")
            try:
                found = read(self.stack, *([named] if named is not None else []), request.query_params)
            except _AWAY as error:
                return self._away(request, error)
            except (pages.NotThere, UnknownSession) as error:
                return self.render(request, "note.html", 404, title="Not here", sentence=str(error))
            except OrchestraError as error:
                return self.render(
                    request, "note.html", 400, title="This cannot be shown", sentence=str(error)
                )
            return self.render(request, template, **found)

        return shown

    def _away(self, request: Request, error: BaseException) -> Response:
        self.stack.forget()
        sentence = " ".join(str(error).split()) or type(error).__name__
        return self.render(request, "note.html", 503, title="No stack answers", sentence=sentence)

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        return self.render(
            request, "note.html", 404, title="Not here", sentence="The console has no such page."
        )

    async def _fault(self, request: Request, error: Exception) -> Response:
        sentence = f"A fault in the console itself, which its log has: {type(error).__name__}"
        return self.render(request, "note.html", 500, title="A fault", sentence=sentence)

    def _forbidden(self, request: Request) -> Response | None:
        person: Person = request.scope["orchestra.person"]
        sentence = f"{person.name} may look and not act: ask an operator"
        return (
            None
            if person.acts
            else self.render(request, "note.html", 403, title="Not allowed", sentence=sentence)
        )

    def _report(self, request: Request) -> Response:
        """Return the report on a time as a file."""
        try:
            text = reports.page(self.stack, request.query_params)
        except _AWAY as error:
            return self._away(request, error)
        except OrchestraError as error:
            return self.render(request, "note.html", 400, title="Refused", sentence=str(error))
        headers = {"content-disposition": 'attachment; filename="report.html"', "cache-control": "no-store"}
        return HTMLResponse(text, headers=headers)

    def _export(self, request: Request) -> Response:
        """Return the whole audit trail as a file."""
        if refused := self._forbidden(request):
            return refused
        folder = Path(mkdtemp(prefix="orchestra-export-"))
        done = BackgroundTask(rmtree, folder, ignore_errors=True)
        path = folder / f"audit-{isoformat(time.time_ns() // 1_000_000)[:19].replace(':', '')}.jsonl.zst"
        try:
            messages = actions.export(self.stack, request.scope["orchestra.person"], path)
        except OrchestraError as error:
            rmtree(folder, ignore_errors=True)
            return self.render(request, "note.html", 409, title="Refused", sentence=str(error))
        headers = {"cache-control": "no-store", "x-messages": str(messages)}
        return FileResponse(
            path, headers=headers, media_type="application/zstd", filename=path.name, background=done
        )

    async def _act(self, request: Request) -> Response:
        person: Person = request.scope["orchestra.person"]
        if refused := self._forbidden(request):
            return refused
        form = await _form(request)
        action = request.path_params["action"]
        try:
            outcomes = await run_in_threadpool(actions.run, self.stack, person, action, form)
        except _AWAY as error:
            return self._away(request, error)
        except UnknownSession as error:
            return self.render(request, "note.html", 404, title="Not here", sentence=str(error))
        except OrchestraError as error:
            return self.render(request, "note.html", 409, title="Refused", sentence=str(error))
        return RedirectResponse(self._back(request, form, action, outcomes), 303)

    def _back(
        self, request: Request, form: actions.Form, action: str, outcomes: list[actions.Outcome]
    ) -> str:
        """Return the address that shows what came of an action: the page it was asked on, or the new session's."""
        name = secrets.token_hex(8)
        self._outcomes[name] = outcomes
        while len(self._outcomes) > _OUTCOMES:
            self._outcomes.popitem(last=False)
        base = request.scope.get("root_path", "").rstrip("/")
        back = (form.get("back") or ["/"])[0]
        if action == "fork" and outcomes and outcomes[0].session:
            back = f"/sessions/{outcomes[0].session}"
        if not back.startswith("/") or back.startswith("//") or "\\" in back:
            back = "/"
        path, _, asked = back.partition("?")
        kept = {n: v for n, v in parse_qs(asked).items() if n not in ("outcome", "act")}
        return f"{base}{quote(path, safe='/%')}?{urlencode({**kept, 'outcome': name}, doseq=True)}"

    def _probed(self, request: Request) -> Response:
        """Return metrics, or what a probe asks."""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", "").rstrip("/"))
        status, kind, body = self.probes.answer(path, request.headers.get("accept", ""))
        return Response(body, status, {"content-type": kind, "cache-control": "no-store"})

    async def _enter(self, request: Request) -> Response:
        """Let in who knows the lasting token, or has one of one use."""
        token = (await _form(request)).get("token", [""])[0].strip()
        person = self.access.use_token(token)
        if person is None and self.access.is_lasting(token):
            person = Person("token", "viewer" if self.access.rules.read_only else "operator")
        if person is None:
            sentence = (
                "This token is not valid, has passed its time or was used. Ask for another: orchestra open"
            )
            return self.render(request, "enter.html", 401, sentence=sentence)
        return self.let_in(request, person, "/")

    def let_in(self, request: Request, person: Person, path: str) -> Response:
        """Return the answer that gives somebody the cookie, and leads on to a page."""
        base = request.scope.get("root_path", "").rstrip("/")
        answer = RedirectResponse(f"{base}{path}", 303)
        answer.set_cookie(
            COOKIE,
            self.access.make_cookie(person),
            max_age=COOKIE_S,
            path=base or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _events(self, request: Request) -> Response:
        return EventSourceResponse(self._ticks(request), ping=15, headers={"cache-control": "no-store"})

    async def _ticks(self, request: Request) -> AsyncIterator[dict[str, str]]:
        """Yield a tick when the ledger has changed, and now and then; `away` while no stack answers."""
        self.pace.open += 1
        try:
            async for event in self._events_of(request):
                yield event
        finally:
            self.pace.open -= 1

    async def _events_of(self, request: Request) -> AsyncIterator[dict[str, str]]:
        last, told_at, away = "", 0.0, False
        session, said = request.query_params.get("session", ""), ""
        while not await request.is_disconnected():
            try:
                now = await run_in_threadpool(self.stack.revision)
                if is_session_id(session):
                    said = await run_in_threadpool(self.stack.said_after, session, said)
                    now = f"{now} {said}"
            except _AWAY as error:
                self.stack.forget()
                if not away:
                    yield {"event": "away", "data": " ".join(str(error).split())}
                away, last = True, ""
            else:
                waited_s = time.monotonic() - told_at
                if (now != last and waited_s >= self.pace.interval_s) or waited_s >= _TICK_EVERY_S:
                    if last or away:
                        yield {"event": "tick", "data": now}
                    else:
                        yield {"event": "hello", "data": now}
                    last, told_at, away = now, time.monotonic(), False
            await asyncio.sleep(_LOOK_EVERY_S)


class Guard:
    """Lets through who may come in, and puts the policy on every answer."""

    def __init__(self, inner: ASGIApp, console: Console) -> None:
        self._inner = inner
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = await run_in_threadpool(self._answer, scope)
        await (answer or self._inner)(scope, receive, sent)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a request that does not come through; None: it does."""
        request, headers, access = Request(scope), Headers(scope=scope), self._console.access
        base = scope.get("root_path", "").rstrip("/")
        path = scope["path"][len(base) :]
        if why := refuses(scope["method"], headers, access.rules.hosts):
            return self._console.render(request, "note.html", 403, title="Refused", sentence=why)
        if path.startswith("/static/") or path == OPEN:
            return None
        token = request.query_params.get("token", "")
        if token and scope["method"] == "GET":
            person = access.use_token(token)
            if person is not None:
                return self._console.let_in(request, person, path or "/")
        client = scope.get("client")
        person = access.of_proxy(client[0] if client else "", headers) or access.of_cookie(
            request.cookies.get(COOKIE, "")
        )
        scope["orchestra.person"] = person
        if person is None and path.startswith(PATHS):
            return self._unless_bearer(access, headers)
        if person is None and path != "/enter":
            sentence = "This token is not valid, has passed its time or was used." if token else ""
            return self._console.render(request, "enter.html", 401, sentence=sentence)
        return None

    @staticmethod
    def _unless_bearer(access: Access, headers: Headers) -> Response | None:
        """Refuse a program that asks for metrics without a token for them."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and access.may_scrape(token.strip()):
            return None
        words = "a bearer token is needed here: orchestra metrics --token\n"
        return Response(words, 401, {"www-authenticate": "Bearer"}, "text/plain")


async def _form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form; of one that is too large nothing, so that it is refused."""
    octets = b""
    async for chunk in request.stream():
        octets += chunk
        if len(octets) > _MOST_BYTES:
            return {}
    return parse_qs(octets.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=1_000)


def mounted(prefix: str, inner: ASGIApp) -> ASGIApp:
    """Return an application that serves another one below a path."""
    prefix = "/" + prefix.strip("/")
    return inner if prefix == "/" else Starlette(routes=[Mount(prefix, inner)])


def make_app(
    settings: Callable[[], Settings] = load_settings, rules: Callable[[Settings], Rules] = rules_of
) -> ASGIApp:
    """Return a console; settings and rules are asked for when it is first used."""
    stack = Stack(settings)
    return Console(stack, lambda: Access(rules(settings()))).application()
