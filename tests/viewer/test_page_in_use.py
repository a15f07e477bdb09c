"""The viewer's page as it is used, in a real Chromium: on a live run, by keyboard, on a phone, in the dark, and by a newcomer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from agentrl.models import NANO
from agentrl.viewer.server import serving_in_thread
from tests.components import missing
from tests.viewer.chromium import Look, looking, open_chromium

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl/axe/node_modules/axe-core/axe.min.js"
PLACES = ("run/0", "run/0?with=1", "timeline/0", "episodes/0", "group/0/3", "episode/0/3")
STEPS = 5


def training(directory: Path, steps: int = STEPS) -> subprocess.Popen[str]:
    """Start a quickstart run, with its tasks beside it."""
    subprocess.run(
        [sys.executable, "-m", "agentrl.envs.calculator_env", str(directory / "tasks")], check=True, timeout=60
    )
    command = [
        *(sys.executable, "-m", "agentrl", "train", "--config", str(ROOT / "workflows/quickstart.toml")),
        *("--workflow", str(ROOT / "workflows/calculator.py"), "--model", str(NANO), "--steps", str(steps)),
        *("--tasks", str(directory / "tasks/train.jsonl"), "--eval.tasks", str(directory / "tasks/eval.jsonl")),
        *("--run-dir", str(directory / "run")),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a run is shown, which was looked at while it went on, and beside it the same again."""
    directory = tmp_path_factory.mktemp("live")
    run_dir = directory / "run"
    with training(directory) as process, serving_in_thread([run_dir, run_dir]) as address:
        with looking(browser, address) as look:
            page = look.at("run/0")
            expect(page.locator(".status")).to_have_text("running")
            step = page.locator(".tiles div", has_text="step").locator("dd")
            for taken in range(2, STEPS):  # without a reload
                page.wait_for_function(
                    "n => parseInt(document.querySelector('.tiles dd')?.textContent) >= n", arg=taken, timeout=120_000
                )
            expect(page.locator(".status")).to_have_text("finished", timeout=120_000)
            expect(step).to_have_text(f"{STEPS} of {STEPS}")
            expect(page.locator("figure", has_text="held-out").locator("canvas")).to_be_visible()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        yield address


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_page_is_accessible_in_light_and_dark(browser: Browser, address: str, scheme: str) -> None:
    if not AXE.exists():
        missing(f"axe-core is not at {AXE} (scripts/install_soak.sh)")
    with looking(browser, address, color_scheme=scheme) as look:
        for place in PLACES:
            shown(look, place)
            look.page.evaluate(AXE.read_text())
            found = look.page.evaluate("axe.run()")["violations"]
            assert [
                (place, one["id"], one["nodes"][0]["html"], one["nodes"][0]["failureSummary"]) for one in found
            ] == []
        assert look.complaints == []


def shown(look: Look, place: str) -> None:
    """Go to a place and wait until it shows what it has."""
    page = look.at(place)
    kind = place.partition("/")[0]
    waits = {"run": ".tiles", "timeline": "canvas", "episodes": ".list", "group": ".member .reply", "episode": ".token"}
    expect(page.locator(waits[kind]).first).to_be_visible()
    expect(page.locator(".awaited")).to_have_count(0)  # a group's episodes are read one by one


def test_a_phone_shows_each_page_without_scrolling_sideways(browser: Browser, address: str) -> None:
    with looking(browser, address, viewport={"width": 390, "height": 844}, has_touch=True) as look:
        for place in PLACES:
            shown(look, place)
            assert look.page.evaluate("document.documentElement.scrollWidth") <= 390, place


def test_keys_go_through_episodes_and_tokens(browser: Browser, address: str) -> None:
    with looking(browser, address) as look:
        shown(look, "episode/0/3")
        page = look.page
        page.keyboard.press("j")
        expect(page.get_by_role("heading", name="Episode 4")).to_be_visible()
        page.keyboard.press("k")
        expect(page.get_by_role("heading", name="Episode 3")).to_be_visible()
        page.locator(".tokens").first.focus()
        page.keyboard.press("ArrowRight")
        expect(page.locator(".inspector")).to_contain_text("token 2 of")
        page.keyboard.press("End")
        expect(page.locator(".inspector")).to_contain_text("<|im_end|>")


def test_a_newcomer_finds_the_worst_group_and_exports_the_best_episodes_in_two_clicks_each(
    browser: Browser, address: str
) -> None:
    with looking(browser, address) as look:
        page = look.at("run/0")
        page.get_by_role("link", name="Episodes", exact=True).click()
        page.get_by_role("button", name="Worst group of the last step").click()
        expect(page.locator(".heading")).to_contain_text(f"trained in step {STEPS}")
        look.at("run/0")
        page.get_by_role("link", name="Episodes", exact=True).click()
        with page.expect_download() as download:
            page.locator(".exports", has_text="ten best").get_by_role("link", name="JSON lines").click()
        lines = Path(download.value.path()).read_text().splitlines()
        rewards = [json.loads(line)["episode"]["reward"] for line in lines]
        assert len(rewards) == 10
        assert min(rewards) == 1.0


def test_a_zoom_is_shared_by_all_curves_and_a_double_click_ends_it(browser: Browser, address: str) -> None:
    with looking(browser, address) as look:
        shown(look, "run/0")
        page = look.page
        plot = page.locator("figure", has_text="Entropy").locator(".u-over")
        page.wait_for_load_state("networkidle")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        page.mouse.move(box["x"] + box["width"] * 0.2, middle)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.8, middle, steps=5)
        page.mouse.up()
        expect(page.locator(".zoomed")).to_contain_text("Steps 2 to 4")
        plot.dblclick()
        expect(page.locator(".zoomed")).to_have_count(0)
