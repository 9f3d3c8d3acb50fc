"""A real browser in front of a real run: faults appear, an incident opens, a device is drained, and all of it is
accessible."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import poise
from poise.control import read_journal
from poise.events import Done, Mended, Noticed, Reported

HERE = Path(__file__).parent
AXE = (HERE / "axe.min.js").read_text()

JOB = """
workload = "paced:Paced"
[params]
n = 16
steps = 100000
t_end = 0.5
[devices]
active = 2
spares = 2
[keeper]
every = 500
"""

PACED = """
import time
from poise.physics.grid import Burgers2d

class Paced(Burgers2d):
    def batch(self, index):
        time.sleep(0.02)  # a sensor that gives fifty frames a second
        return super().batch(index)
"""

FAULTS = """
[[fault]]
kind = "nan"
step = 150
[[fault]]
kind = "bitflip"
step = 250
slot = 1
[[fault]]
kind = "inf"
step = 350
"""

WATCH = """
window.appeared = {};
new MutationObserver(() => {
  for (const e of document.querySelectorAll("[id^=incident-]"))
    window.appeared[e.id] ??= (performance.timeOrigin + performance.now()) / 1000;
}).observe(document, {childList: true, subtree: true, attributes: true});
"""


class Run:
    """`poise run --serve` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "job.toml").write_text(JOB)
        (folder / "paced.py").write_text(PACED)
        (folder / "faults.toml").write_text(FAULTS)
        self.journal = folder / "out" / "run.db"
        command = [
            sys.executable, "-c", "from poise.cli import main; main()", "run", "job.toml", "--faults", "faults.toml",
            "--no-compare", "--out", "out", "--serve", "--port", "0",
        ]  # fmt: skip
        paths = (str(Path(poise.__file__).parents[1]), str(folder))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
        self.child = subprocess.Popen(
            command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env
        )
        assert self.child.stderr is not None
        found = None
        while found is None:
            line = self.child.stderr.readline()
            assert line, "the run ended before it had a page"
            found = re.search(r"(http://\S+/)\s+token for actions: (\S+)", line)
        self.url, self.token = found[1], found[2]
        # Somebody must read what it says, or it would wait for that some day.
        self.reader = threading.Thread(target=self.child.stderr.read, daemon=True)
        self.reader.start()

    def close(self) -> None:
        self.child.terminate()
        self.child.wait(30)
        self.reader.join(30)
        assert self.child.stderr is not None
        self.child.stderr.close()


@pytest.fixture(scope="module")
def run(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    made = Run(tmp_path_factory.mktemp("run"))
    yield made
    made.close()


@pytest.fixture
def page(browser: Any, run: Run) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    opened.on("pageerror", lambda e: complaints.append(str(e)))
    opened.add_init_script(WATCH)
    opened.goto(run.url)
    yield opened
    # A refused form is answered with 4xx, which the console says; scripts and styles must be silent.
    assert not [c for c in complaints if "status of 4" not in c], complaints
    context.close()


def until(page: Any, true: str) -> None:
    """Wait until an expression is true. (`wait_for_function` needs eval, which the page forbids.)"""
    deadline = time.monotonic() + 60
    while not page.evaluate(true):
        assert time.monotonic() < deadline, true
        page.wait_for_timeout(50)


def accessible(page: Any) -> None:
    page.evaluate(AXE)  # past the page's own policy, which forbids scripts from elsewhere
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    wrong = [(v["id"], v["help"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found["violations"]]
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.timeout(170)
def test_each_scripted_fault_appears_by_itself(page: Any, run: Run) -> None:
    page.wait_for_selector("#link[data-state=live]", timeout=60_000)
    deadline = time.monotonic() + 120
    while page.locator("[id^=incident-]").count() < 3:
        assert time.monotonic() < deadline, "the faults do not appear"
        page.wait_for_timeout(100)
    assert page.locator(".incidents .what strong").all_inner_texts() == ["infinity", "damaged memory", "NaN"]
    appeared = page.evaluate("window.appeared")
    noticed = sorted(e.at for _, e in read_journal(run.journal) if isinstance(e, Noticed))
    late = [max(0.0, seen - at) for at, seen in zip(noticed, sorted(appeared.values()), strict=True)]
    # The goal is one second, which `benchmarks/page.py` measures; here only that nobody waits for a timer of 20.
    assert max(late) < 10, late
    step = int(re.sub(r"\D", "", page.locator(".part-progress .big").inner_text()))
    until(page, f"Number(document.querySelector('.part-progress .big').textContent.replace(/\\D/g, '')) > {step}")


def test_an_incident_opens_with_its_phases_and_events(page: Any) -> None:
    page.wait_for_selector(".incidents a", timeout=60_000)
    page.locator(".incidents a", has_text="damaged memory").first.click()
    page.wait_for_selector("h1:has-text('damaged memory')")
    assert page.locator(".log.full strong").all_inner_texts()[-2:] == ["Noticed", "Mended"]
    assert page.locator(".key.phase-first_step").count() == 1
    assert "did not match the marks" in page.locator("main").inner_text()
    accessible(page)


def test_a_device_is_drained_with_the_token_and_the_page_shows_it_done(page: Any, run: Run) -> None:
    page.wait_for_selector("#link[data-state=live]", timeout=60_000)
    page.locator("#device-1 a", has_text="Drain").click()
    page.wait_for_selector("h1:has-text('Drain device 1?')")
    accessible(page)
    page.fill("#who", "Ada")
    page.fill("#why", "it whines")
    page.fill("#token", "wrong wrong wrong")
    page.click("button[type=submit]")
    page.wait_for_selector("[role=alert]:has-text('not the token')")
    page.fill("#token", run.token)
    page.click("button[type=submit]")
    page.wait_for_selector("#device-1.state-retired", timeout=60_000)
    assert "replaced by" in page.locator("#device-1").inner_text()
    assert page.locator("#device-2 .role").inner_text() == "slot 1"
    page.wait_for_selector(".incidents .what:has-text('device drained')")
    events = [e for _, e in read_journal(run.journal)]
    asked = next(e for e in events if isinstance(e, Reported) and e.what == "drain")
    assert (asked.device_id, asked.who, asked.why) == (1, "Ada", "it whines")
    assert next(e for e in events if isinstance(e, Done)).ok
    assert next(e for e in events if isinstance(e, Mended) and e.fault.kind == "drain").compiles == 0


def test_a_run_is_paused_and_goes_on_by_keyboard_alone(page: Any, run: Run) -> None:
    page.wait_for_selector("#link[data-state=live]", timeout=60_000)
    for wanted, word in (("Pause", "paused"), ("Resume", None)):
        page.locator(".part-verdict a.button", has_text=wanted).focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#who")
        page.locator("#who").focus()
        for text in ("Ada", "lunch", run.token):
            if page.evaluate("document.activeElement.tagName") == "INPUT":
                page.keyboard.type(text)
                page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_selector(f"h1:has-text('{word}')" if word else "a.button:has-text('Pause')", timeout=60_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_accessible_and_fits(browser: Any, run: Run, scheme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    for path in ("", "devices", "incidents", "login", "act/pause"):
        page.goto(run.url + path)
        accessible(page)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"/{path} is {wide} px too wide at {width}"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip", "the first stop is the way past the header"
    context.close()


def test_where_the_focus_is_stays_while_the_page_lives(page: Any) -> None:
    page.wait_for_selector("#link[data-state=live]", timeout=60_000)
    link = page.locator("#device-0 a")
    link.focus()
    step = page.locator(".part-progress .big").inner_text()
    until(page, f"document.querySelector('.part-progress .big').textContent !== {json.dumps(step)}")
    page.wait_for_timeout(1200)
    assert page.evaluate("document.activeElement.closest('li')?.id") == "device-0"
