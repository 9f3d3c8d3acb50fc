"""A browser for the page's tests: Debian's chromium, driven by Playwright (whose own download is not needed)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


def chromium() -> str | None:
    """The browser's path: CHROMIUM, or what is installed."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The browser, or a reason why there is none. Not for the session: Playwright leaves an event loop running in this
    thread, in which other files' tests start their own."""
    path = chromium()
    if path is None:
        pytest.skip("no chromium here (Debian: apt-get install chromium), and none named by CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as p:
        made = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield made
        made.close()
