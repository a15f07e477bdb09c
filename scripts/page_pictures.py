"""Photograph the viewer's page on a finished run for docs/viewer.md, in Debian's Chromium.

python -m scripts.page_pictures runs/quickstart 118 docs/pictures    # 118: the episode that is shown
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect

from agentrl.viewer.server import serving_in_thread
from tests.viewer.acted_run import acting
from tests.viewer.chromium import looking, open_chromium

SIZE = {"width": 1200, "height": 860}
PATIENCE_MS = 120_000
"""How long an act may take."""


def main(run_dir: Path, episode: str, pictures: Path) -> None:
    """Write page-run.webp, page-episodes.webp, page-episode.webp and page-act.webp."""

    def photograph(page: Page, name: str) -> None:
        page.wait_for_load_state("networkidle")
        Image.open(io.BytesIO(page.screenshot())).save(pictures / f"page-{name}.webp", quality=82, method=6)

    places = {
        "run": ("run/0", "canvas"),
        "episodes": ("episodes/0?sort=worst", ".list"),
        "episode": (f"episode/0/{episode}", ".token"),
    }
    with (
        serving_in_thread([run_dir]) as address,
        open_chromium() as browser,
        looking(browser, address, viewport=SIZE) as look,
    ):
        for name, (place, awaited) in places.items():
            page = look.at(place)
            page.locator(awaited).first.wait_for()
            if name == "episode":
                page.locator(".token").nth(20).hover()
            photograph(page, name)
    with acting(run_dir) as address, open_chromium() as browser, looking(browser, address, viewport=SIZE) as look:
        page = look.at(f"episode/0/{episode}")
        newest = page.get_by_label("weights").locator("option").last.get_attribute("value")
        page.get_by_label("weights").select_option(newest)
        page.get_by_role("button", name="Score again").click()
        expect(page.get_by_label("Tokens coloured by")).to_have_value("difference", timeout=PATIENCE_MS)
        page.get_by_role("button", name="Fork here").first.click()
        page.locator(".member .token").first.wait_for(timeout=PATIENCE_MS)
        page.locator(".acts").evaluate("acts => scrollTo(0, acts.offsetTop - 64)")
        photograph(page, "act")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
