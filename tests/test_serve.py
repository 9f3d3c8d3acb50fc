"""The page's server: what it shows, whom it refuses, and that nothing a client does makes it write or fall."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import uvicorn

from poise import BadInput
from poise.control import Journal, read_journal
from poise.control._door import govern
from poise.control.serve import Site, build
from poise.control.serve._act import local
from poise.control.serve._guard import BODY, is_loopback
from poise.control.serve._live import View
from poise.control.serve._metrics import exposition
from poise.control.serve._session import TRIES, Sessions
from poise.events import (
    Action,
    Done,
    Event,
    Fault,
    Mended,
    Noticed,
    Ordered,
    Progress,
    Protected,
    Reported,
    RunStarted,
    SensorsChanged,
    SnapshotKept,
    Swapped,
    Warmed,
)

TOKEN = "a token of the tests"
EVIL = "<script>alert(1)</script>"


def some_events() -> list[Event]:
    now = time.time()
    f = Fault(7, "nan", (1,), (1,), EVIL)
    return [
        Warmed(3, 6, 1.0, False, at=now - 20), RunStarted(EVIL, 0, (0, 1, 2), (3, 4), at=now - 20),
        Protected(10_000_000, 590_000, "snapshot"), SnapshotKept(4, 12345), Progress(7, 9.0),
        Noticed(f, Action.RETRY, EVIL), Mended(f, Action.RETRY, 0.1, 0, 2, {"notice": 0.05, "first_step": 0.05}),
        SensorsChanged(7, EVIL, "nan", (1,), -99.0), Reported("agent", 1, "xid", 1, 13, EVIL),
    ]  # fmt: skip


class Server:
    """A governor and a page, each in a thread of this process."""

    def __init__(self, path: Path, **site: Any) -> None:
        self.path = path
        self.moved: list[str] = []
        self._ready, self._scope = threading.Event(), None
        self._governor = threading.Thread(target=anyio.run, args=(self._govern,), daemon=True)
        self._governor.start()
        assert self._ready.wait(20)
        self.site = Site(path, TOKEN, **site)
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        self.port = bound.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(uvicorn.Config(build(self.site), log_level="error", lifespan="on", ws="none",
                                                     timeout_graceful_shutdown=1))  # fmt: skip
        self._page = threading.Thread(target=self._server.run, kwargs={"sockets": [bound]}, daemon=True)
        self._page.start()
        while not self._server.started:
            assert self._page.is_alive()
            time.sleep(0.01)

    async def _govern(self) -> None:
        async def carry_out(order: Ordered) -> tuple[bool, str]:
            self.moved.append(order.order)
            if order.spare >= 0:
                await self.governor.tell(Swapped(9, order.slot, order.device_id, order.spare, "drain", "copy", 0.1, 0))
            return True, "done"

        self._loop_stop = anyio.Event()
        async with govern(self.path, carry_out, begin=some_events()) as self.governor:
            self._token = anyio.lowlevel.current_token()
            self._ready.set()
            await self._loop_stop.wait()

    def tell(self, *events: Event) -> None:
        anyio.from_thread.run(self.governor.tell, *events, token=self._token)

    def close(self) -> None:
        self._server.should_exit = True
        self._page.join(20)
        anyio.from_thread.run_sync(self._loop_stop.set, token=self._token)
        self._governor.join(20)

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, **more)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("served") / "run.db")
    yield made
    made.close()


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def written(server: Server) -> int:
    return sum(1 for _ in read_journal(server.path))


PATHS = [
    "/", "/devices", "/incidents", "/incidents/6", "/act/drain?device=1", "/act/pause", "/login", "/healthz", "/readyz",
    "/metrics", "/api/v1/status", "/api/v1/incidents", "/api/v1/incidents/6", "/api/v1/events", "/api/v1/runs",
    "/api/v1/openapi.json", "/static/page.css", "/static/page.js", "/static/htmx.min.js",
]  # fmt: skip


# -- what it shows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_every_page_is_there_with_its_headers_and_without_inline_scripts(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    if answer.headers["content-type"].startswith("text/html"):
        assert EVIL not in answer.text
        assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>|\son\w+=|\sstyle=|javascript:", answer.text)
        assert answer.headers["cache-control"] == "no-store"


def test_the_page_shows_everything_in_its_order(http: httpx.Client) -> None:
    text = http.get("/").text
    parts = ["head-verdict", "head-progress", "head-devices", "head-spares", "head-memory", "head-numbers",
             "head-channels", "head-hardware", "head-timeline", "head-log"]  # fmt: skip
    places = [text.index(f'id="{name}"') for name in parts]
    assert places == sorted(places)
    for words in ("goodput", "warm-up", "NaN", "576.2 KiB", "survivable", "xid 13", "failing", "transient"):
        assert words in text, words


def test_an_incident_opens_on_its_own_page_with_its_events(http: httpx.Client) -> None:
    (incident,) = http.get("/api/v1/incidents").json()["incidents"][-1:]
    text = http.get(f"/incidents/{incident['id']}").text
    assert "Noticed" in text
    assert "Mended" in text
    assert "RunStarted" not in text
    assert http.get("/incidents/999999").status_code == 404
    assert http.get(f"/incidents/{10**30}").status_code == 404


def test_metrics_are_openmetrics_with_base_units(http: httpx.Client) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    assert all(name.startswith("poise_") for name in families)
    samples = [s for f in families.values() for s in f.samples]
    for sample in samples:
        unit = {"poise_step_rate_hertz": True}.get(
            sample.name, re.search(r"_(ms|kib|mib|percent|minutes)$", sample.name) is None
        )
        assert unit, sample.name
        assert set(sample.labels) <= {"poise_verdict", "cause", "state", "kind", "action", "verdict", "device"}
    values = {(s.name, *s.labels.values()): s.value for s in samples}
    assert values["poise_faults_total", "nan"] == 1
    assert values["poise_spare_bytes",] == 590_000
    assert values["poise_lost_seconds_total", "warm-up"] == 1.0
    assert values["poise_failing_channels",] == 1
    assert 0 < values["poise_goodput_ratio",] < 1


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_accepts_the_metrics_and_the_alert_rules(http: httpx.Client, tmp_path: Path) -> None:
    rules = Path(str(resources.files("poise.control.serve") / "alerts.yml"))
    subprocess.run(["promtool", "check", "rules", str(rules)], check=True, capture_output=True)
    text = http.get("/metrics").text
    plain = "\n".join(line for line in text.splitlines() if line != "# EOF") + "\n"
    done = subprocess.run(
        ["promtool", "check", "metrics", "--extended"], input=plain.replace("stateset", "gauge"), text=True,
        check=False, capture_output=True,
    )  # fmt: skip
    assert "error" not in done.stderr.lower(), done.stderr
    (tmp_path / "alerts.yml").write_text(rules.read_text())
    (tmp_path / "test.yml").write_text(
        """
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - { series: 'poise_verdict{poise_verdict="stopped", instance="a"}', values: '0 0 1 1' }
      - { series: 'poise_verdict{poise_verdict="well", instance="b", job="j"}', values: '1x20' }
      - { series: 'poise_survivable{instance="b", job="j"}', values: '0x20' }
      - { series: 'poise_survivable{instance="finished", job="j"}', values: '0x20' }
      - { series: 'poise_open_pages{instance="c"}', values: '0 1 1 1' }
    alert_rule_test:
      - { eval_time: 1m, alertname: PoiseRunStopped, exp_alerts: [] }
      - eval_time: 3m
        alertname: PoiseRunStopped
        exp_alerts:
          - exp_labels: { severity: page, poise_verdict: stopped, instance: a }
            exp_annotations:
              summary: A run on a has stopped beyond its promise.
              description: Its journal says why, and where a resume begins.
      - eval_time: 10m
        alertname: PoiseNotSurvivable
        exp_alerts:
          - exp_labels: { severity: warning, instance: b, job: j }
            exp_annotations: { summary: The next loss of a device ends the run on b. }
      - eval_time: 3m
        alertname: PoisePersonNeeded
        exp_alerts:
          - exp_labels: { severity: page, instance: c }
            exp_annotations:
              summary: A run on c waits for a person.
              description: "The status page says what for; acknowledging it there ends this alert."
"""
    )
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_empty_view_has_metrics_too() -> None:
    from poise.control._summary import Summary

    assert b'poise_verdict{poise_verdict="empty"} 1.0' in exposition(View(0, Summary()))


# -- the stream --------------------------------------------------------------------------------------------------------


def read_stream(server: Server, wanted: str, act: Any = None, timeout: float = 20) -> float:
    """Seconds until the stream says `wanted`, after `act`."""
    with server.client() as client, client.stream("GET", "/events", timeout=timeout) as stream:
        lines = stream.iter_lines()
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in lines:  # the first message holds every part
            if line == "event: log":
                break
        t0 = time.monotonic()
        if act is not None:
            act()
        for line in lines:
            if wanted in line:
                return time.monotonic() - t0
    raise AssertionError(f"the stream never said {wanted!r}")


def test_the_stream_brings_an_event_soon_after_it_happened(server: Server) -> None:
    f = Fault(8, "inf", (2,), (2,), "somewhere[8]")
    took = read_stream(
        server, "somewhere[8]", lambda: server.tell(Noticed(f, Action.RETRY, "r"), Mended(f, Action.RETRY, 0.1, 0, 1))
    )
    assert took < 10, "it waits for a timer instead of the event"


def test_clients_that_do_not_read_or_leave_at_once_cost_nothing(server: Server, http: httpx.Client) -> None:
    slow = []
    for _ in range(20):
        peer = socket.create_connection(("127.0.0.1", server.port))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        peer.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        slow.append(peer)
    for n in range(40):
        f = Fault(100 + n, "inf", (2,), (2,), "x" * 500)
        server.tell(Noticed(f, Action.RETRY, "r"), Mended(f, Action.RETRY, 0.1, 0, 1))
    assert http.get("/").status_code == 200
    for peer in slow:
        peer.close()
    deadline = time.monotonic() + 20
    while server.site.streams() > 0 and time.monotonic() < deadline:
        http.get("/healthz")
    assert server.site.streams() == 0, "a client that has left is still served"


def test_more_streams_than_allowed_are_sent_away_and_pages_still_answer(server: Server, http: httpx.Client) -> None:
    with contextlib.ExitStack() as stack:
        answers = []
        for _ in range(70):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            peer.settimeout(20)
            peer.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
            answers.append(peer.recv(15))
        assert answers.count(b"HTTP/1.1 200 OK") == 64
        assert answers.count(b"HTTP/1.1 429 To") == 6
        assert http.get("/").status_code == 200


# -- who is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "", "[::2]", "127.0.0.1@evil"]
)
def test_a_foreign_host_header_is_refused(server: Server, host: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(f"GET /api/v1/status HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert b" 400 " in peer.recv(4096)


@pytest.mark.parametrize("path", [
    "/static/../_app.py", "/static/..%2f_app.py", "/static/%2e%2e/%2e%2e/events.py", "/static//etc/passwd", "/static/",
    "/static/....//....//etc/passwd", "/%00", "/act/%2e%2e", "/act/kill", "/incidents/-1", "/incidents/1e3",
    "/events/../x",
])  # fmt: skip
def test_path_tricks_lead_nowhere(server: Server, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as peer:
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost:{server.port}\r\nConnection: close\r\n\r\n".encode())
        head = peer.recv(65536)
    assert re.match(rb"HTTP/1.1 (400|404|405) ", head), head[:60]


@pytest.mark.parametrize("raw", [
    b"\x00\xff\xfe garbage\r\n\r\n", b"GET /events HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 3000, b"GET " + b"/a" * 40_000 + b" HTTP/1.1\r\n\r\n",
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
    b"GET /events HTTP/1.1\r\nHost: localhost\r\nCookie: poise_session=\"\\\x01;;=\r\n\r\n",
])  # fmt: skip
def test_malformed_requests_are_answered_or_dropped_and_the_next_one_is_served(
    server: Server, http: httpx.Client, raw: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as peer, contextlib.suppress(OSError):
        peer.settimeout(5)
        peer.sendall(raw)
        assert b" 500 " not in peer.recv(100)
    assert http.get("/healthz").text == "ok\n"


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["/api/v1/actions", "/login", "/act/drain"])
def test_oversized_bodies_are_refused(server: Server, http: httpx.Client, path: str, chunked: bool) -> None:
    before = written(server)
    body = b"x" * (BODY + 1)
    content: Any = iter([body[: BODY // 2], body[BODY // 2 :]]) if chunked else body
    answer = http.post(
        path, content=content, headers={"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    )
    assert answer.status_code == 413
    assert written(server) == before


def test_requests_from_other_sites_change_nothing(server: Server, http: httpx.Client) -> None:
    before = written(server)
    body = {"what": "drain", "device": 1, "who": "Eve", "why": "x"}
    good = {"authorization": f"Bearer {TOKEN}"}
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
        assert http.post("/api/v1/actions", json=body, headers={**good, **headers}).status_code == 403
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
        assert http.post("/api/v1/actions", json=body, headers=headers).status_code == 401
    assert http.post("/api/v1/actions", data=body, headers=good).status_code == 415
    assert http.get("/api/v1/actions").status_code == 405
    assert http.post("/act/drain", data={"device": 1, "who": "Eve", "why": "x", "token": TOKEN}).status_code == 403, (
        "no key"
    )
    assert written(server) == before


def test_wrong_tokens_are_counted_and_then_none_is_looked_at() -> None:
    sessions = Sessions(TOKEN)
    assert sessions.is_token(TOKEN)
    assert not any(sessions.is_token(f"guess {n}") for n in range(TRIES))
    assert sessions.tired
    assert not sessions.is_token(TOKEN), "nobody can go on guessing, whoever guesses right"
    session = sessions.trust()
    assert sessions.trusted(session)
    assert not sessions.trusted(sessions.fresh())
    assert not sessions.is_form_key(session, sessions.form_key(sessions.fresh()))


@pytest.mark.parametrize(("where", "safe"), [
    ("/", "/"), ("/incidents/3", "/incidents/3"), ("//evil.example", "/"), ("http://evil", "/"), ("/\\evil", "/"),
    ("/a\r\nSet-Cookie: x", "/"), ("", "/"),
])  # fmt: skip
def test_after_login_only_our_own_pages_follow(where: str, safe: str) -> None:
    assert local(where) == safe


def test_reading_from_elsewhere_needs_the_token(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Journal(path) as journal:
        journal.append_all(some_events()).result()
    made = Server(path, needs_token=True, names=("my.host",))
    try:
        with made.client(headers={"host": "my.host"}) as client:
            for where in ("/", "/metrics", "/api/v1/status", "/events", "/devices"):
                assert client.get(where).status_code == 401
                with client.stream("GET", where, headers={"authorization": f"Bearer {TOKEN}"}) as answer:
                    assert answer.status_code == 200
            answer = client.get("/devices", headers={"accept": "text/html"})
            assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/devices")
            page = client.get(answer.headers["location"])
            key = re.search(r'name="key" value="(\w+)"', page.text)
            assert key
            wrong = client.post("/login", data={"key": key[1], "token": "no", "next": "/devices"})
            assert wrong.status_code == 403
            again = re.search(r'name="key" value="(\w+)"', wrong.text)
            assert again
            right = client.post("/login", data={"key": again[1], "token": TOKEN, "next": "/devices"})
            assert (right.status_code, right.headers["location"]) == (303, "/devices")
            assert "httponly" in right.headers["set-cookie"].lower()
            assert "samesite=strict" in right.headers["set-cookie"].lower()
            assert client.get("/devices").status_code == 200
            assert client.get("/healthz").text == "ok\n"
    finally:
        made.close()
    assert [is_loopback(h) for h in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "my.host")] == [
        True
    ] * 3 + [False] * 3


# -- actions -----------------------------------------------------------------------------------------------------------


def test_a_drain_by_form_is_journaled_with_who_and_why_and_carried_out(server: Server) -> None:
    with server.client() as client:
        page = client.get("/act/drain?device=2")
        assert "moves to spare" in page.text
        key = re.search(r'name="key" value="(\w+)"', page.text)
        assert key
        form = {"key": key[1], "device": "2", "who": "Ada", "why": "it whines", "token": TOKEN}
        assert client.post("/act/drain", data={**form, "token": "wrong"}).status_code == 403
        assert client.post("/act/drain", data={**form, "who": " "}).status_code == 422
        answer = client.post("/act/drain", data=form)
        assert answer.status_code == 303
        deadline = time.monotonic() + 20
        while client.get("/api/v1/status").json()["registry"]["devices"]["2"] != "retired":
            assert time.monotonic() < deadline
        refused = client.get("/act/drain?device=2")
        key = re.search(r'name="key" value="(\w+)"', refused.text)
        assert key
        assert 'name="token"' not in refused.text, "this browser has shown it"
        again = client.post("/act/drain", data={**form, "key": key[1], "token": ""})
        assert again.status_code == 409
        assert "device 2 is retired" in again.text
    asked = [e for _, e in read_journal(server.path) if isinstance(e, Reported) and e.what == "drain"]
    assert [(e.device_id, e.who, e.why) for e in asked] == [(2, "Ada", "it whines")]
    done = [e for _, e in read_journal(server.path) if isinstance(e, Done)]
    assert done[-1].ok


def test_the_api_takes_actions_and_says_what_is_wrong_with_them(server: Server, http: httpx.Client) -> None:
    good = {"authorization": f"Bearer {TOKEN}"}
    before = written(server)
    for body, status in (
        ({"what": "kill"}, 422), ([], 422), ({"what": "pause", "who": "", "why": "x"}, 422),
        ({"what": "pause", "who": "A", "why": "x", "shell": 1}, 422),
        ({"what": "drain", "who": "A", "why": "x", "device": "1"}, 422),
        ({"what": "drain", "who": "A", "why": "x", "device": 99}, 409),
        ({"what": "acknowledge", "who": "A", "why": "x", "page": "none"}, 409),
    ):  # fmt: skip
        assert http.post("/api/v1/actions", json=body, headers=good).status_code == status, body
    assert (
        http.post("/api/v1/actions", content=b"{", headers={**good, "content-type": "application/json"}).status_code
        == 400
    )
    deep = b"[" * 8000
    assert (
        http.post("/api/v1/actions", content=deep, headers={**good, "content-type": "application/json"}).status_code
        == 400
    )
    assert written(server) == before
    for what in ("pause", "resume"):
        answer = http.post("/api/v1/actions", json={"what": what, "who": "Ada", "why": "lunch"}, headers=good)
        assert answer.status_code == 202
        deadline = time.monotonic() + 20
        wanted = "paused" if what == "pause" else "running"
        while http.get("/api/v1/status").json()["status"] != wanted:
            assert time.monotonic() < deadline


def test_without_a_governor_nothing_can_be_ordered_and_the_page_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Journal(path) as journal:
        journal.append_all(some_events()).result()
    before = path.read_bytes()
    site = Site(path, TOKEN)

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(build(site)), base_url="http://localhost") as client:
            page = await client.get("/act/drain?device=1")
            assert "Nobody governs this run" in page.text
            body = {"what": "drain", "device": 1, "who": "A", "why": "x"}
            answer = await client.post("/api/v1/actions", json=body, headers={"authorization": f"Bearer {TOKEN}"})
            assert answer.status_code == 409
            assert "nobody governs" in answer.json()["error"]
            assert 'href="/act/' not in (await client.get("/")).text
            assert path.read_bytes() == before
            assert (await client.get("/readyz")).status_code == 200
            path.write_text("something else has taken the name")
            site.live.stale()
            assert (await client.get("/readyz")).status_code == 503
            assert "not a poise journal" in (await client.get("/")).text

    anyio.run(main)


# -- the command -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_served_is_refused_in_a_sentence(tmp_path: Path) -> None:
    from poise.control.serve import serve

    (tmp_path / "notes.txt").write_text("no journal")
    path = tmp_path / "run.db"
    with Journal(path) as journal:
        journal.append_all(some_events()).result()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for journal_path, more, why in (
            (tmp_path / "none.db", {}, "no journal"), (tmp_path / "notes.txt", {}, "not a poise journal"),
            (path, {"token": "short"}, "16 characters"), (path, {"port": taken.getsockname()[1]}, "cannot be used"),
            (path, {"host": "no.such.host.invalid"}, "cannot be used"), (path, {"run": 7}, "no run 7"),
        ):  # fmt: skip
            with pytest.raises(BadInput, match=why):
                serve(journal_path, **{"port": 0, **more})


def test_the_command_serves_and_ends_when_its_starter_goes(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with Journal(path) as journal:
        journal.append_all(some_events()).result()
    command = [sys.executable, "-W", "error", "-c", "from poise.cli import main; main()", "serve", str(path),
               "--port", "0", "--until-closed"]  # fmt: skip
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
    )
    try:
        assert child.stderr is not None
        assert child.stdin is not None
        line = child.stderr.readline()
        url = re.search(r"http://\S+/", line)
        assert url, line
        assert httpx.get(url[0] + "api/v1/status", timeout=20).json()["job"] == EVIL
        assert json.loads(httpx.get(url[0] + "api/v1/openapi.json", timeout=20).text)["openapi"].startswith("3.1")
        child.stdin.close()
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stderr):
            if pipe is not None:
                pipe.close()
