"""Running the server: address, token, and an end when the run ends."""

from __future__ import annotations

import secrets
import socket
import sys
from pathlib import Path

import uvicorn

from ...errors import BadInput
from ._app import Site, build
from ._guard import is_loopback


def serve(
    journal: Path, *, host: str = "127.0.0.1", port: int = 8765, token: str | None = None, run: int | None = None,
    until_closed: bool = False,
) -> None:  # fmt: skip
    """Serve a journal until interrupted, or, with `until_closed`, until standard input is closed.

    Prints the address and the token on standard error. `port` 0 takes a free one. Raises `BadInput` for a file that is
    no journal, an address that cannot be bound, or a token that is too short.
    """
    if token is not None and len(token) < 16:
        raise BadInput("A token of one's own needs 16 characters or more.")
    token = token or secrets.token_urlsafe(18)
    local = is_loopback(host)
    names = () if host in ("0.0.0.0", "::") else (f"[{host}]" if ":" in host else host,)
    if not local and not names:
        names = (socket.gethostname(), *_addresses())
    site = Site(journal, token, run, needs_token=not local, names=names)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(512)  # whoever reads the address below may come at once
    except (OSError, OverflowError) as error:
        bound.close()
        raise BadInput(f"The address {host}:{port} cannot be used: {error}.") from error
    shown = f"[{host}]" if ":" in host else host
    print(f"poise: http://{shown}:{bound.getsockname()[1]}/  token for actions: {token}", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        build(site), log_level="warning", access_log=False, server_header=False, date_header=False, lifespan="on",
        timeout_keep_alive=15, timeout_graceful_shutdown=1, limit_concurrency=1000, h11_max_incomplete_event_size=16384,
        ws="none",
    )  # fmt: skip
    server = uvicorn.Server(config)
    if until_closed:
        _end_with_input(server)
    try:
        server.run(sockets=[bound])
    finally:
        bound.close()


def _addresses() -> list[str]:
    found = socket.getaddrinfo(socket.gethostname(), None, family=socket.AF_INET)
    return sorted({str(info[4][0]) for info in found})


def _end_with_input(server: uvicorn.Server) -> None:
    """Whoever started us holds the other end of our standard input; however it dies, that end closes."""
    import threading

    def wait() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        server.should_exit = True

    threading.Thread(target=wait, name="poise-serve-end", daemon=True).start()
