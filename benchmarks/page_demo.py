"""`poise demo --serve` in front of a real browser: how late each fault appears, a drain, pictures for docs/.

    python benchmarks/page_demo.py [FOLDER FOR PICTURES]

Needs playwright and a chromium (CHROMIUM names one). Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from poise.control import read_journal
from poise.events import Mended, Noticed, Reported, Swapped

WATCH = """
window.appeared = {};
new MutationObserver(() => {
  for (const e of document.querySelectorAll("[id^=incident-]"))
    window.appeared[e.id] ??= (performance.timeOrigin + performance.now()) / 1000;
}).observe(document, {childList: true, subtree: true, attributes: true});
"""


def main(pictures: Path) -> dict[str, Any]:
    """Watch a demo from its first step to its last."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        out = Path(folder) / "out"
        command = [sys.executable, "-c", "from poise.cli import main; main()", "demo", "--out", str(out), "--serve",
                   "--port", "0"]  # fmt: skip
        demo = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert demo.stderr is not None
        assert demo.stdout is not None
        found = None
        while found is None:
            found = re.search(r"(http://\S+/)\s+token for actions: (\S+)", demo.stderr.readline())
        threading.Thread(target=demo.stderr.read, daemon=True).start()
        said: list[str] = []
        threading.Thread(target=lambda: said.append(demo.stdout.read()), daemon=True).start()  # type: ignore[union-attr]
        url, token = found[1], found[2]
        path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
        page = context.new_page()
        page.add_init_script(WATCH)
        page.goto(url)
        page.wait_for_selector("[id^=incident-]", timeout=400_000)
        # The drain, in another page, so that this one goes on watching.
        other = context.new_page()
        other.goto(url + "act/drain?device=3")
        other.fill("#who", "Ada")
        other.fill("#why", "its fan rattles")
        other.fill("#token", token)
        asked = time.time()
        other.click("button[type=submit]")
        other.wait_for_selector("#device-3.state-retired", timeout=200_000)
        drained = time.time()
        other.locator(".incidents a", has_text="device drained").first.click()
        other.wait_for_selector(".log.full")
        other.screenshot(path=pictures / "page-incident.png", full_page=True)
        page.wait_for_selector("h1:has-text('finished')", timeout=400_000)
        appeared = page.evaluate("window.appeared")
        journal = out / "run.db"
        for name, options in {
            "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
            "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
            "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
        }.items():
            shot = browser.new_context(**options).new_page()  # type: ignore[arg-type]
            shot.goto(url)
            shot.wait_for_selector("#link[data-state=live]")
            height = 1500 if name != "phone" else 2600
            shot.set_viewport_size({"width": options["viewport"]["width"], "height": height})  # type: ignore[index]
            shot.screenshot(path=pictures / f"page-{name}.png")
        browser.close()
        status = demo.wait(600)
        events = [e for _, e in read_journal(journal)]
        noticed = {e.fault.step: e.at for e in reversed(events) if isinstance(e, Noticed)}
        told = next(e for e in events if isinstance(e, Reported) and e.what == "drain")
        swap = next(e for e in events if isinstance(e, Swapped) and e.old_id == 3)
        first = sorted(noticed.values())[1:]  # the first one was there when the page was opened, or nearly
        late = [seen - at for at, seen in zip(first, sorted(appeared.values())[1:], strict=False)]
        return {
            "exit_status": status, "incidents": len(appeared),
            "faults_mended": sum(isinstance(e, Mended) for e in events),
            "appeared_after_s": {"median": sorted(late)[len(late) // 2], "max": max(late)},
            "drain": {"clicked_to_journal_s": told.at - asked, "journal_to_swapped_s": swap.at - told.at,
                      "clicked_to_shown_s": drained - asked, "compiles": swap.compiles},
            "load": os.getloadavg()[0], "tail": "".join(said).splitlines()[-4:],
        }  # fmt: skip


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "poise-out")
    folder.mkdir(parents=True, exist_ok=True)
    print(json.dumps(main(folder), indent=1))
