"""`/api/v1`: the same as JSON, described by `/api/v1/openapi.json`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from ...errors import PoiseError
from .._respond import ASKS
from .._verdict import report
from ._guard import bearer
from ._metrics import CONTENT_TYPE, exposition
from ._openapi import DOCUMENT

if TYPE_CHECKING:
    from ._app import Site

MOST = 500
"""Most events or incidents in one answer."""

BIG = 2**53


class Wrong(Exception):
    """A request that cannot be answered: status and sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


def _int(request: Request, name: str, default: int | None, low: int, high: int) -> int | None:
    values = request.query_params.getlist(name)
    if not values:
        return default
    text = values[-1]
    good = text.isascii() and text.isdigit() and len(text) < 17 and len(values) == 1
    if not good or not low <= int(text) <= high:
        raise Wrong(422, f"{name} must be a whole number from {low} to {high}.")
    return int(text)


class Api:
    """Answers in JSON."""

    def __init__(self, site: Site) -> None:
        self.site = site

    async def status(self, request: Request) -> Response:
        """Everything about the run in one object."""
        view = await self.site.live.fresh()
        return JSONResponse({**report(view.summary, time.time()), "governed": view.governed})

    async def incidents(self, request: Request) -> Response:
        """Incidents, newest first."""
        limit = _int(request, "limit", 50, 1, MOST)
        before = _int(request, "before", None, 0, BIG)
        await self.site.live.fresh()
        found = self.site.live.reader.incidents(limit or 50, before)
        return JSONResponse({"incidents": [i.to_dict() for i in found]})

    async def incident(self, request: Request) -> Response:
        """One incident."""
        await self.site.live.fresh()
        number = request.path_params["number"]
        found = self.site.live.reader.incident(number) if number <= BIG else None
        if found is None:
            raise Wrong(404, "There is no such incident in this run.")
        return JSONResponse(found.to_dict())

    async def events(self, request: Request) -> Response:
        """Events as they were written."""
        limit = _int(request, "limit", 50, 1, MOST)
        before, after = _int(request, "before", None, 0, BIG), _int(request, "after", None, 0, BIG)
        await self.site.live.fresh()
        found = self.site.live.reader.events(limit or 50, before=before, after=after)
        return JSONResponse({"events": found})

    async def runs(self, request: Request) -> Response:
        """The runs of this journal."""
        return JSONResponse({"runs": self.site.live.reader.runs()})

    async def act(self, request: Request) -> Response:
        """Ask the governor for something."""
        if self.site.sessions.tired:
            raise Wrong(429, "Too many wrong tokens; wait a minute.")
        if not self.site.sessions.is_token(bearer(request.scope)):
            raise Wrong(401, "Actions need the token: Authorization: Bearer TOKEN.")
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise Wrong(415, "Accepted is application/json.")
        try:
            data: Any = json.loads(await request.body())
        except (ValueError, RecursionError):
            raise Wrong(400, "The body is no JSON.") from None
        if not isinstance(data, dict) or set(data) - {"what", "device", "page", "who", "why"}:
            raise Wrong(422, "Accepted is an object with what, who, why, and device or page.")
        what, device, page = data.get("what"), data.get("device", -1), data.get("page", "")
        if what not in ASKS:
            raise Wrong(422, f"what is one of {', '.join(ASKS)}.")
        if not isinstance(device, int) or isinstance(device, bool) or not -1 <= device < 2**31:
            raise Wrong(422, "device must be a device's number.")
        for name, value, most in (("who", data.get("who"), 200), ("why", data.get("why"), 2000), ("page", page, 200)):
            if not isinstance(value, str) or len(value) > most or (name != "page" and not value.strip()):
                raise Wrong(422, f"{name} must be a text of at most {most} characters, and not empty.")
        said = await self.site.actions.ask(what, device, page, data["who"].strip(), data["why"].strip())
        if said["outcome"] != "accepted":
            raise Wrong(409, f"It was not done: {said['why']}.")
        return JSONResponse({"outcome": "accepted"}, 202)

    async def openapi(self, request: Request) -> Response:
        """This interface, described."""
        return JSONResponse(DOCUMENT)

    async def metrics(self, request: Request) -> Response:
        """OpenMetrics."""
        return Response(exposition(await self.site.live.fresh()), media_type=CONTENT_TYPE)

    async def healthz(self, request: Request) -> Response:
        """Whether the server answers."""
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """Whether the journal can be read."""
        try:
            await self.site.live.fresh()
        except PoiseError as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse("ready\n")
