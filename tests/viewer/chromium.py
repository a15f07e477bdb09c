"""A real Chromium that looks at the viewer's page, and what it complained of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.components import missing

PATIENCE_MS = 20_000
"""How long a page is waited for: each wait ends with what it waits for."""


@contextmanager
def open_chromium() -> Iterator[Browser]:
    """The browser of this machine, without a window."""
    program = shutil.which("chromium") or missing("no chromium is installed (scripts/install_chromium.sh)")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        # Its own sandbox is refused to root, who runs tests in containers; what it opens is our own page.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@dataclass
class Look:
    """A page that is looked at."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)

    def at(self, place: str) -> Page:
        """Go to a place of the page, as its address says it."""
        self.page.goto(f"{self.address}#/{place}")
        return self.page


@contextmanager
def looking(browser: Browser, address: str, **context: Any) -> Iterator[Look]:
    """A new page, which keeps what the console says and what is thrown."""
    with browser.new_context(**context) as opened:
        look = Look(opened.new_page(), address)
        look.page.set_default_timeout(PATIENCE_MS)
        look.page.on("console", lambda said: look.complaints.append(said.text) if said.type != "log" else None)
        look.page.on("pageerror", lambda error: look.complaints.append(str(error)))
        yield look
