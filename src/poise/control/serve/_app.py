"""The application: who answers what."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles

from ...errors import PoiseError
from ._act import Actions, ActPages
from ._api import Api, Wrong
from ._guard import Guard, TooLarge
from ._live import Live
from ._pages import Pages
from ._session import Sessions

LOCAL = ("127.0.0.1", "localhost", "[::1]")
"""Names that always mean this machine."""


@dataclass
class Site:
    """What is served, and to whom. `names` are further names in a Host header that mean us; `streams` says how many
    pages are being kept alive."""

    journal: Path
    token: str
    run: int | None = None
    needs_token: bool = False
    names: tuple[str, ...] = ()
    live: Live = field(init=False)
    sessions: Sessions = field(init=False)
    actions: Actions = field(init=False)
    streams: Callable[[], int] = field(init=False)

    def __post_init__(self) -> None:
        self.live = Live(self.journal, self.run)
        self.sessions = Sessions(self.token)
        self.actions = Actions(self.journal)
        self.streams = lambda: 0


def build(site: Site) -> Guard:
    """The ASGI application of a site."""
    pages, api = Pages(site), Api(site)
    act = ActPages(pages)
    site.streams = lambda: pages.streams.open

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(site.live.run)
            yield
            group.cancel_scope.cancel()

    def plain(request: Request, status: int, sentence: str, headers: Any = None) -> Response:
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": sentence}, status, headers=headers)
        answer = pages.problem(status, sentence)
        answer.headers.update(headers or {})
        return answer

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        words = {404: "There is nothing at this address.", 405: "That is not done at this address."}
        return plain(request, error.status_code, words.get(error.status_code, error.detail), error.headers)

    async def wrong(request: Request, error: Exception) -> Response:
        assert isinstance(error, Wrong)
        headers = {"www-authenticate": "Bearer"} if error.status == 401 else None
        return plain(request, error.status, error.sentence, headers)

    async def too_large(request: Request, error: Exception) -> Response:
        return plain(request, 413, TooLarge.sentence)

    async def ours(request: Request, error: Exception) -> Response:
        # The journal went away or was replaced by something else while the server runs.
        return plain(request, 503, str(error))

    routes = [
        Route("/", pages.home),
        Route("/events", pages.events),
        Route("/incidents", pages.incidents),
        Route("/incidents/{number:int}", pages.incident),
        Route("/devices", pages.devices),
        Route("/act/{what}", act.form, methods=["GET"]),
        Route("/act/{what}", act.act, methods=["POST"]),
        Route("/login", act.login_form, methods=["GET"]),
        Route("/login", act.login, methods=["POST"]),
        Route("/healthz", api.healthz),
        Route("/readyz", api.readyz),
        Route("/metrics", api.metrics),
        Route("/api/v1/status", api.status),
        Route("/api/v1/incidents", api.incidents),
        Route("/api/v1/incidents/{number:int}", api.incident),
        Route("/api/v1/events", api.events),
        Route("/api/v1/runs", api.runs),
        Route("/api/v1/actions", api.act, methods=["POST"]),
        Route("/api/v1/openapi.json", api.openapi),
    ]
    hosts = frozenset((*LOCAL, *site.names))
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: http_error, Wrong: wrong, TooLarge: too_large, PoiseError: ours},
    )
    app.mount("/static", StaticFiles(packages=[("poise.control.serve", "static")]), name="static")
    return Guard(app, hosts, site.needs_token, site.sessions)
