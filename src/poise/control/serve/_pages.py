"""The pages: the status page and its live parts, an incident, all devices."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from ._guard import session_of
from ._live import View
from ._stream import MOST, Stream, Streams
from ._view import FILTERS, context, incident, told

if TYPE_CHECKING:
    from ._app import Site

PARTS = (
    "verdict", "needed", "progress", "devices", "spares", "memory", "numbers", "channels", "hardware", "timeline",
    "log",
)  # fmt: skip
"""The page's parts in their order; each has a template and an event of the stream."""

MOVING = ("verdict", "progress", "memory")
"""Those that change with every step."""


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


class Pages:
    """Renders and answers."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.templates = jinja2.Environment(
            loader=jinja2.PackageLoader("poise.control.serve"), autoescape=True, trim_blocks=True, lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )  # fmt: skip
        self.templates.filters.update(FILTERS, clock=_clock, iso=_iso)
        self.streams = Streams(site.live, self.parts)

    def parts(self, view: View, whole: bool = True) -> dict[str, str]:
        """The live parts as HTML; unless `whole`, only those that progress changes."""
        facts = context(view)
        names = PARTS if whole else MOVING
        return {name: self.templates.get_template(f"part_{name}.html").render(facts) for name in names}

    def page(self, name: str, status: int = 200, **facts: Any) -> Response:
        """A whole page."""
        html = self.templates.get_template(f"{name}.html").render(journal=self.site.journal.name, **facts)
        return HTMLResponse(html, status)

    async def home(self, request: Request) -> Response:
        """The status page."""
        view = await self.site.live.fresh()
        names = [(name, self.streams.parts(view)[name]) for name in PARTS]
        trusted = self.site.sessions.trusted(session_of(request.scope))
        return self.page("home", parts=names, trusted=trusted, **context(view))

    async def events(self, request: Request) -> Any:
        """The stream that keeps the page alive."""
        if self.streams.open >= MOST:
            return PlainTextResponse(f"More than {MOST} pages are open.\n", 429, headers={"retry-after": "5"})
        return Stream(self.streams)

    async def incident(self, request: Request) -> Response:
        """One incident with its events."""
        view = await self.site.live.fresh()
        number = request.path_params["number"]
        found = self.site.live.reader.incident(number) if number < 2**53 else None
        if found is None:
            return self.problem(404, "There is no such incident in this run.")
        events = self.site.live.reader.events(200, after=found.id - 1, before=found.last + 1)
        lines = [told(e) for e in events]
        return self.page(
            "incident", i=incident(found), events=lines, begun=lines[0]["at"] if lines else 0.0, **_how(view)
        )

    async def incidents(self, request: Request) -> Response:
        """Every incident, a hundred to a page."""
        await self.site.live.fresh()
        before = request.query_params.get("before", "")
        end = int(before) if before.isascii() and before.isdigit() and len(before) < 16 else None
        found = [incident(i) for i in self.site.live.reader.incidents(100, end)]
        return self.page("incidents", incidents=found)

    async def devices(self, request: Request) -> Response:
        """Every device, in a table."""
        view = await self.site.live.fresh()
        return self.page("devices", **context(view))

    def problem(self, status: int, sentence: str) -> Response:
        """An error in a sentence."""
        return self.page("problem", status, sentence=sentence)


def _how(view: View) -> dict[str, Any]:
    facts = context(view, time.time())
    return {"verdict": facts["verdict"], "s": view.summary}
