"""The viewer's page in a real Chromium: a recorded run is shown on each of its pages, and what a model wrote stays text."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from agentrl.proxy import ChatFormat
from agentrl.store.batches import trained_step
from agentrl.store.store import Store
from agentrl.viewer.server import serving_in_thread
from tests.recorded_run import record_run
from tests.viewer.chromium import looking, open_chromium
from tests.viewer.shown_run import CONVERSATION, RESULT, make_shown_run

HOSTILE = "<img src=x onerror=window.owned=1><script>window.owned=1</script>\x1b[31m\u202e"
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"What is 2 + 3? {HOSTILE}"}]
STEP = {
    "reward_mean": 0.625, "batch_reward_mean": 0.5, "groups_counted": 2, "staleness_mean": 0.5, "staleness_max": 1, "entropy": 0.25,
    "logprob_mismatch_mean_abs": 1e-7, "importance_weight_p01": 0.9, "importance_weight_p50": 1.0, "importance_weight_p99": 1.1,
    "grad_norm": 0.5, "train_s": 1.0, "wait_s": 2.5, "pause_s": 0.5, "step_s": 4.0, "episodes_finished": 6,
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, nano_format: ChatFormat) -> Iterator[str]:
    """Where a recorded run is shown, whose every text is hostile, and a supervised one."""
    run_dir: Path = tmp_path_factory.mktemp("shown") / "run"
    make_shown_run(run_dir, nano_format, ASKED, RESULT | {"content": HOSTILE}, error=f"ValueError: {HOSTILE}")
    with Store(run_dir / "store.sqlite") as store:
        trained = trained_step(1, ((0, 3), (1, 3)), [[(group, number) for group in (0, 1) for number in range(3)]], 1)
        store.commit_checkpoint(run_dir / "checkpoints/step-1", 1, [trained])
    rows = [STEP | {"step": step, "wall_s": 4.0 * step, "tokens": 800 * step} for step in (1, 2)]
    rows[1] |= {"alarm_stalled": 1, "alarms": {"stalled": "nothing has ended for 10 min"}}
    with closing(sqlite3.connect(run_dir / "store.sqlite")) as db, db:
        facts = {"opened_at": 1796027620.9, "sum": 1234.5, "large": 12345678901}
        details = json.dumps(facts | {f"case {number}": "passed" for number in range(1500)})
        db.execute("UPDATE episodes SET duration_s = 2.5, details = ?", (details,))
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    supervised = run_dir.parent / "supervised"
    supervised.mkdir()
    (supervised / "config.json").write_bytes((run_dir / "config.json").read_bytes())
    (supervised / "metrics.jsonl").write_text('{"step": 1, "nll": 4.5, "lr": 1e-3, "step_s": 0.5}\n')
    with serving_in_thread([run_dir, supervised]) as address:
        yield address


def test_every_page_of_a_recorded_run_opens_without_a_complaint_and_shows_its_figures(
    browser: Browser, address: str
) -> None:
    with looking(browser, address) as look:
        page = look.at("run/0")
        expect(page.locator(".tiles")).to_contain_text("0.625")
        rate = page.locator("figure", has_text="Generated tokens")
        expect(rate.locator(".legend")).to_contain_text("200")
        expect(rate.locator("canvas")).to_be_visible()
        expect(page.locator("figure", has_text="Staleness").locator(".legend")).to_contain_text("bound 3")
        page.get_by_text("Alarms, restarts, checkpoints (2)").click()
        expect(page.get_by_text("step 2: alarm: nothing has ended for 10 min")).to_be_visible()
        page.get_by_role("button", name="Audit this run").click()
        expect(page.locator(".audit").get_by_role("status")).to_be_visible()

        look.at("timeline/0")
        expect(page.locator("table.shares tr", has_text="waited for a batch")).to_contain_text("63 %")
        expect(page.locator(".gain")).to_contain_text("Estimated from the trace")
        # (2.5 + 1 + 0.5) / (max(6 * 2.5 / 64, 1) + 0.5)
        expect(page.locator(".gain tr", has_text="S_max")).to_contain_text("2.67")

        look.at("episodes/0?sort=best")
        expect(page.locator(".list tbody tr")).to_have_count(14)
        expect(page.locator(".list tbody tr").first).to_contain_text(str(CONVERSATION))
        page.get_by_label("Ended").select_option("failed")
        expect(page.locator(".list tbody tr")).to_have_count(1)

        page.locator(".list tbody a").first.click()
        expect(page.get_by_role("heading", name=f"Episode {CONVERSATION + 1}")).to_be_visible()
        expect(page.locator(".button.off")).to_have_count(2)  # the filter leaves no other
        with page.expect_download() as download:
            page.locator(".exports").get_by_role("link", name="JSON lines").click()
        assert json.loads(Path(download.value.path()).read_text())["episode"]["id"] == CONVERSATION + 1

        look.at("group/0/4")
        expect(page.locator(".member")).to_have_count(2)
        assert look.complaints == []


def test_the_worst_group_is_that_of_the_last_step_that_the_store_knows(browser: Browser, address: str) -> None:
    with looking(browser, address) as look:  # step 2 was taken, and no checkpoint contains it
        page = look.at("episodes/0")
        page.get_by_role("button", name="Worst group of the last step with a checkpoint, 1").click()
        expect(page.locator(".heading")).to_contain_text("trained in step 1")
        expect(page.locator(".heading")).not_to_contain_text("state")


def test_a_supervised_run_shows_its_loss_and_no_curve_that_it_cannot_have(browser: Browser, address: str) -> None:
    with looking(browser, address) as look:
        page = look.at("run/1")
        expect(page.locator("figure", has_text="Loss of a supervised run").locator(".legend")).to_contain_text("4.5")
        expect(page.locator("figure", has_text="Reward")).to_have_count(0)
        assert look.complaints == []


def test_the_tokens_of_an_episode_are_coloured_and_hostile_text_stays_text(browser: Browser, address: str) -> None:
    with looking(browser, address) as look:
        page = look.at(f"episode/0/{CONVERSATION}")
        expect(page.locator(".message.user")).to_contain_text("<script>window.owned=1</script>")
        expect(page.locator(".message.tool")).to_contain_text("<img src=x onerror=window.owned=1>")
        expect(page.locator(".call").first).to_contain_text('"a": 2')
        expect(page.locator(".cut").first).to_have_text("weights v0→v1")
        expect(page.locator(".facts, .tiles").first).to_contain_text("v0 to v1")
        expect(page.locator(".fields tr").nth(0)).to_contain_text("opened_at2026-11-")
        expect(page.locator(".fields tr").nth(1)).to_have_text("sum1\u202f234.5")
        expect(page.locator(".fields tr").nth(2)).to_have_text("large12\u202f345\u202f678\u202f901")
        expect(page.locator(".fields tr")).to_have_count(200)  # of so many details the first, and a button
        page.get_by_role("button", name="Show more").click()
        expect(page.locator(".fields tr")).to_have_count(1000)
        token = page.locator(".token").first
        by_logprob = token.evaluate("token => getComputedStyle(token).backgroundColor")
        page.get_by_label("Tokens coloured by").select_option("version")
        newest = page.locator(".tokens").first.locator(".token").last
        assert newest.evaluate("token => getComputedStyle(token).backgroundColor") not in (
            by_logprob,
            "rgba(0, 0, 0, 0)",
        )
        token.hover()
        expect(page.locator(".inspector")).to_contain_text("logprob -0.25")

        look.at(f"episode/0/{CONVERSATION + 1}")
        expect(page.locator(".failure")).to_contain_text("ValueError: <img src=x")
        assert page.evaluate("window.owned") is None
        assert look.complaints == []


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a run is shown whose store is of another version."""
    run_dir = tmp_path_factory.mktemp("older") / "run"
    record_run(run_dir, steps=1)
    with closing(sqlite3.connect(run_dir / "store.sqlite")) as db:
        db.execute("PRAGMA user_version = 3")
    with serving_in_thread([run_dir]) as address:
        yield address


def test_the_page_of_a_run_says_why_it_cannot_be_read(browser: Browser, older: str) -> None:
    with looking(browser, older) as look:
        expect(look.at("run/0").get_by_role("alert")).to_contain_text("has schema 3")
