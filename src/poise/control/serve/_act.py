"""Actions: what a person may ask of a run. They are reports to its governor, which journals who asked and why; this
server writes nothing itself, and there is none that ends a run."""

from __future__ import annotations

import itertools
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ...events import Reported
from .._respond import ASKS
from .._socket import Reporter
from ._guard import SESSION, session_of
from ._live import View
from ._pages import Pages

WORDS = {
    "drain": "Move the work of this device to a spare, by copy. A spare that is drained leaves the pool.",
    "pause": "Let the run wait after the step that it is at. Its state stays where it is.",
    "resume": "Let the run go on.",
    "acknowledge": "Say that somebody has seen to it; it goes off the list.",
}
"""What the confirmation page says of each action."""


class Actions:
    """Asks the governor, once for each request."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._source = f"page:{os.getpid()}:{time.time_ns()}"
        self._seq = itertools.count(1)
        # Numbers must reach the governor in order, and one connection carries them.
        self._one = anyio.CapacityLimiter(1)

    async def ask(self, what: str, device: int, page: str, who: str, why: str) -> dict[str, Any]:
        """The governor's answer: `outcome` is accepted, refused, or absent if nobody governs the run."""
        return await anyio.to_thread.run_sync(self._ask, what, device, page, who, why, limiter=self._one)

    def _ask(self, what: str, device: int, page: str, who: str, why: str) -> dict[str, Any]:
        # A source of its own for each request: a refusal leaves no number in the journal, and no gap.
        source = f"{self._source}:{next(self._seq)}"
        report = Reported(source, 1, what, device, detail=page, who=who, why=why)
        reporter = Reporter(self._journal, source)
        try:
            return reporter.send(json.dumps({"report": asdict(report)}).encode())
        except (OSError, ValueError):
            return {"outcome": "absent", "why": "nobody governs this run (it has ended, or it was started without)"}
        finally:
            reporter.close()


class ActPages:
    """Forms, and what is done with them."""

    def __init__(self, pages: Pages) -> None:
        self.pages, self.site = pages, pages.site

    async def form(self, request: Request) -> Response:
        """Ask who, why, and whether it is meant."""
        what = request.path_params["what"]
        if what not in ASKS:
            return self.pages.problem(404, "There is no such action.")
        view = await self.site.live.fresh()
        query = request.query_params
        device, page = _number(query.get("device", "-1")), query.get("page", "")[:200]
        if what == "drain" and device not in view.summary.registry.devices:
            return self.pages.problem(404, "There is no such device.")
        return self._form(request, view, what, device, page)

    async def act(self, request: Request) -> Response:
        """Carry a form to the governor."""
        what = request.path_params["what"]
        if what not in ASKS:
            return self.pages.problem(404, "There is no such action.")
        fields = await form_fields(request)
        session = session_of(request.scope)
        if not self.site.sessions.is_form_key(session, fields.get("key", "")):
            return self.pages.problem(403, "This form is not from this page any more; open it again.")
        view = await self.site.live.fresh()
        device, page = _number(fields.get("device", "-1")), fields.get("page", "")[:200]
        who, why = fields.get("who", "").strip()[:200], fields.get("why", "").strip()[:2000]

        def again(sentence: str, status: int) -> Response:
            return self._form(request, view, what, device, page, sentence=sentence, who=who, why=why, status=status)

        trusted = self.site.sessions.trusted(session)
        if not trusted and self.site.sessions.tired:
            return again("Too many wrong tokens; wait a minute.", 429)
        if not trusted and not self.site.sessions.is_token(fields.get("token", "")):
            return again("That is not the token; the server printed it when it started.", 403)
        if not who or not why:
            return again("Please say who you are and why; both go into the journal.", 422)
        said = await self.site.actions.ask(what, device, page, who, why)
        if said["outcome"] != "accepted":
            return again(f"It was not done: {said['why']}.", 409)
        answer = RedirectResponse(f"/?done={what}", 303)
        if not trusted:
            self._remember(answer, self.site.sessions.trust())
        return answer

    async def login_form(self, request: Request) -> Response:
        """Ask for the token."""
        return self._login(request, "", 200)

    async def login(self, request: Request) -> Response:
        """Trust this browser from now on."""
        fields = await form_fields(request)
        session = session_of(request.scope)
        if not self.site.sessions.is_form_key(session, fields.get("key", "")):
            return self._login(request, "This form is not from this page any more; try again.", 403)
        if self.site.sessions.tired:
            return self._login(request, "Too many wrong tokens; wait a minute.", 429)
        if not self.site.sessions.is_token(fields.get("token", "")):
            return self._login(request, "That is not the token; the server printed it when it started.", 403)
        answer = RedirectResponse(local(fields.get("next", "/")), 303)
        self._remember(answer, self.site.sessions.trust())
        return answer

    def _login(self, request: Request, sentence: str, status: int) -> Response:
        session = session_of(request.scope) or self.site.sessions.fresh()
        where = local(request.query_params.get("next", "/"))
        answer = self.pages.page(
            "login", status, sentence=sentence, key=self.site.sessions.form_key(session), next=where
        )
        self._remember(answer, session)
        return answer

    def _form(
        self, request: Request, view: View, what: str, device: int, page: str, *, sentence: str = "", who: str = "",
        why: str = "", status: int = 200,
    ) -> Response:  # fmt: skip
        session = session_of(request.scope) or self.site.sessions.fresh()
        registry = view.summary.registry
        answer = self.pages.page(
            "act", status, what=what, words=WORDS[what], device=device, page=page, sentence=sentence, who=who, why=why,
            key=self.site.sessions.form_key(session), trusted=self.site.sessions.trusted(session),
            governed=view.governed, spare=registry.spares[0] if registry.spares else None,
            in_slot=device in registry.slots, said=view.summary.pages.get(page, ""),
        )  # fmt: skip
        self._remember(answer, session)
        return answer

    def _remember(self, answer: Response, session: str) -> None:
        answer.set_cookie(SESSION, session, httponly=True, samesite="strict", path="/", max_age=12 * 3600)


async def form_fields(request: Request) -> dict[str, str]:
    """The fields of a form; of one that is sent twice, the last."""
    raw = (await request.body()).decode("utf-8", "replace")
    try:
        return {name: values[-1] for name, values in parse_qs(raw, keep_blank_values=True, max_num_fields=20).items()}
    except ValueError:
        return {}


def local(where: str) -> str:
    """A path of this server; anything else becomes the first page."""
    plain = where.startswith("/") and not where.startswith("//") and "\\" not in where and where.isprintable()
    return where if plain else "/"


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1
