"""What every request passes: who may ask, how much may be sent, and the headers of every answer."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from ._session import Sessions

BODY = 16 * 1024
"""Largest body in bytes."""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}

OPEN = ("/healthz", "/readyz", "/login")
"""Paths that need no token anywhere, and the static files."""

SESSION = "poise_session"


def is_loopback(host: str) -> bool:
    """Whether an address to bind to is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def session_of(scope: Any) -> str:
    """The session's name in the request's cookie, or an empty string."""
    try:
        cookie = SimpleCookie(Headers(scope=scope).get("cookie", ""))
    except CookieError:
        return ""
    return cookie[SESSION].value if SESSION in cookie else ""


def bearer(scope: Any) -> str:
    """The token of an Authorization header, or an empty string."""
    kind, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


class TooLarge(Exception):
    """The body is larger than `BODY`: what a reader of it meets."""

    sentence = f"The body is larger than {BODY} bytes."


@dataclass
class Guard:
    """Around the application, its error pages included.

    `hosts` are the names in a Host header that mean us; a foreign one may be a browser that was led here by somebody
    else's name. `needs_token`: reading needs a session or a token as well.
    """

    app: Any
    hosts: frozenset[str]
    needs_token: bool
    sessions: Sessions

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        path = scope["path"]

        async def dressed(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if not path.startswith("/static/"):
                    headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, dressed)
            return
        got = 0

        async def bounded() -> Any:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > BODY:
                raise TooLarge
            return message

        await self.app(scope, bounded, dressed)

    def _refused(self, scope: Any) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if _name(host) not in self.hosts:
            return _error(path, 400, "This server does not go by that name.")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY:
            return _error(path, 413, TooLarge.sentence)
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            origin = headers.get("origin")
            if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
                return _error(path, 403, "The request comes from another site.")
            if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                return _error(path, 403, "The request comes from another site.")
        if self.needs_token and path not in OPEN and not path.startswith("/static/"):
            known = self.sessions.trusted(session_of(scope)) or self.sessions.is_token(bearer(scope))
            if not known:
                if scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
                    return RedirectResponse(f"/login?next={quote(path)}", 303)
                return _error(path, 401, "Reading this server from another machine needs its token.")
        return None


def _name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] if ":" in host else host


def _error(path: str, status: int, sentence: str) -> Response:
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    if path.startswith("/api/"):
        return JSONResponse({"error": sentence}, status, headers=headers)
    return PlainTextResponse(sentence + "\n", status, headers=headers)
