"""Acts of the viewer over loopback: continuations and scores under weights that are named, the reward again, and who may not ask."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from playwright.sync_api import expect
from transformers import AutoModelForCausalLM

from agentrl import open_run
from agentrl.models import NANO
from agentrl.proxy import ChatFormat
from agentrl.viewer import act
from agentrl.viewer.server import serving_in_thread
from tests.viewer.acted_run import MAX_TOKENS, STEP, WORKFLOW, acting, make_acted_run, plain_logprobs
from tests.viewer.chromium import looking, open_chromium

BASE = None
ACT_MS = 120_000
"""How long the page is given for an act."""


@pytest.fixture(scope="module")
def run_dir(server_url: str, nano_format: ChatFormat, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return anyio.run(make_acted_run, tmp_path_factory.mktemp("acted"), server_url, nano_format)


@contextmanager
def page_of(run_dir: Path) -> Iterator[httpx.Client]:
    """A client that asks for acts on the run's episode, of a page that may act."""
    with acting(run_dir) as address, httpx.Client(base_url=f"{address}api/runs/0/episodes/1/", timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def http(run_dir: Path) -> Iterator[httpx.Client]:
    with page_of(run_dir) as client:
        yield client


@pytest.fixture(scope="module")
def models(run_dir: Path) -> dict[int | None, Any]:
    """transformers' own models of the weights that can be named."""
    paths = {BASE: NANO, STEP: open_run(run_dir).checkpoints[0].path}
    return {step: AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval() for step, path in paths.items()}


@pytest.fixture
def workflow(run_dir: Path) -> Iterator[Path]:
    """The file of the run's workflow, which a test may change."""
    file = run_dir.parent / "sums.py"
    yield file
    file.write_text(WORKFLOW)


def acted(http: httpx.Client, kind: str, **asked: Any) -> Any:
    answer = http.post(kind, json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]


def test_a_fork_samples_continuations_of_a_turns_prompt_under_the_weights_that_are_named(
    http: httpx.Client, run_dir: Path, models: dict[int | None, Any], nano_format: ChatFormat
) -> None:
    turns = open_run(run_dir).episode(1).record.turns
    # Up to a checkpoint and back.
    for turn, checkpoint, count in ((0, BASE, 2), (1, STEP, 3), (0, BASE, 1)):
        found = acted(http, "fork", turn=turn, checkpoint=checkpoint, count=count)["continuations"]
        assert len(found) == count
        path, temperature = turns[turn].token_ids(), turns[turn].temperature
        prompt = path[: len(path) - len(turns[turn].output_ids)]
        for one in found:
            ids, logprobs = one["tokens"]["ids"], one["tokens"]["logprobs"]
            assert 0 < len(ids) <= MAX_TOKENS
            assert logprobs == pytest.approx(plain_logprobs(models[checkpoint], prompt, ids, temperature), abs=1e-4)
            assert one["text"] == nano_format.plain(ids).content
            assert "".join(one["tokens"]["text"]) == nano_format.decode(ids)


def test_a_fork_of_a_run_that_has_taken_the_place_of_another_is_under_its_own_weights(
    run_dir: Path, models: dict[int | None, Any], tmp_path: Path
) -> None:
    shown, other = tmp_path / "run", tmp_path / "other"
    for copy in (shown, other):
        shutil.copytree(run_dir, copy)
    turn = open_run(run_dir).episode(1).record.turns[0]
    prompt = turn.token_ids()[: -len(turn.output_ids)]
    shutil.copy(NANO / "model.safetensors", other / f"checkpoints/step-{STEP:06d}")
    with page_of(shown) as http:
        for weights in (STEP, BASE):
            (one,) = acted(http, "fork", checkpoint=STEP, count=1)["continuations"]
            plain = plain_logprobs(models[weights], prompt, one["tokens"]["ids"], turn.temperature)
            assert one["tokens"]["logprobs"] == pytest.approx(plain, abs=1e-4)
            if weights == STEP:
                shown.rename(tmp_path / "before")
                other.rename(shown)


def test_every_sampled_token_of_an_episode_is_scored_as_transformers_scores_it(
    http: httpx.Client, run_dir: Path, models: dict[int | None, Any]
) -> None:
    turns = open_run(run_dir).episode(1).record.turns
    assert [(turn.parent is None, turn.temperature) for turn in turns] == [(True, 0.7), (False, 1.0), (True, 1.0)]
    for checkpoint in (BASE, STEP):
        scores = acted(http, "score", checkpoint=checkpoint)["logprobs"]
        for turn, logprobs in zip(turns, scores, strict=True):
            path = turn.token_ids()
            prompt = path[: len(path) - len(turn.output_ids)]
            plain = plain_logprobs(models[checkpoint], prompt, turn.output_ids, turn.temperature)
            assert logprobs == pytest.approx(plain, abs=1e-4)
            assert (logprobs == pytest.approx(turn.logprobs, abs=1e-4)) == (checkpoint is BASE)  # which sampled them


def test_a_workflow_that_changed_grades_the_recorded_replies_anew(http: httpx.Client, workflow: Path) -> None:
    same = acted(http, "grade")
    assert (same["reason"], same["reward"], same["recorded"], same["unknown"]) == ("finished", 0.25, 0.25, [])
    reward = "Reward(0.75, metrics={'length': 3.0}, details={'why': 'longer'})"
    workflow.write_text("from agentrl import Reward\n" + WORKFLOW.replace("return 0.25", f"return {reward}"))
    anew = acted(http, "grade")
    assert (anew["reward"], anew["recorded"], anew["metrics"]) == (0.75, 0.25, {"length": 3.0})
    assert anew["details"] == {"why": "longer"}
    workflow.write_text(WORKFLOW.replace("another conversation", "another question"))
    other = acted(http, "grade")
    assert other["reason"] != "finished"
    assert "another question" in other["unknown"][0]


@pytest.mark.parametrize(
    ("kind", "asked", "says"),
    [
        ("fork", {"turn": 3}, "turn: 3 is none of the 3 turns of the episode"),
        ("fork", {"count": 17}, "count: Input should be less than or equal to 16"),
        ("fork", {"checkpoint": 5}, f"checkpoint: 5 is not kept; the run keeps {STEP}"),
        ("score", {"checkpoint": 5}, f"checkpoint: 5 is not kept; the run keeps {STEP}"),
        ("score", {"weights": "/etc"}, "weights: Extra inputs are not permitted"),
    ],
)
def test_an_act_that_cannot_be_done_is_refused_with_the_reason(
    kind: str, asked: dict[str, Any], says: str, http: httpx.Client
) -> None:
    status, error = refusal(http.post(kind, json=asked))
    assert (status, error) == (400, says)


def test_an_episode_of_an_evaluation_is_not_graded_again(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(run_dir, tmp_path / "evaluation")
    with closing(sqlite3.connect(tmp_path / "evaluation/store.sqlite")) as db, db:
        db.execute("UPDATE run_values SET value = ? WHERE name = 'tasks'", ('{"evaluation": {}}',))
    with page_of(tmp_path / "evaluation") as http:
        status, error = refusal(http.post("grade", json={}))
    assert status == 404
    assert "is of an evaluation, which is neither trained in, replayed nor audited" in error


def test_one_act_goes_on_at_a_time_and_a_workflow_that_blocks_does_not_keep_the_page_from_answering(
    http: httpx.Client, workflow: Path, tmp_path: Path
) -> None:
    # The workflow asks for another act while it is graded, and blocks its event loop until it is answered.
    asks = f"""
import httpx, pathlib, threading
def ask(ended):
    try:
        pathlib.Path("{tmp_path}/answer").write_text(httpx.post("{http.base_url}score", json={{}}).text)
    finally:
        ended.append(True)
async def run(episode):
    ended = []
    threading.Thread(target=ask, args=[ended]).start()
    while not ended:
        pass
    return 0
"""
    workflow.write_text(asks)
    acted(http, "grade")
    assert "another act goes on" in (tmp_path / "answer").read_text()


def test_an_act_that_takes_too_long_is_ended_and_the_next_one_is_done(
    http: httpx.Client, workflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow.write_text("import anyio\nasync def run(episode):\n    await anyio.sleep_forever()\n")
    with monkeypatch.context() as patch:
        patch.setattr(act, "ACT_TIMEOUT_S", 0.5)
        assert refusal(http.post("grade", json={})) == (400, "it took longer than 0.5 s, and was ended")
    workflow.write_text(WORKFLOW)
    assert acted(http, "grade")["reward"] == 0.25


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Content-Type": "text/plain"},
        {"Host": "evil.example"},
    ],
)
def test_another_page_may_not_act(headers: dict[str, str], http: httpx.Client) -> None:
    status, _ = refusal(http.post("grade", content="{}", headers={"Content-Type": "application/json"} | headers))
    assert status == 403


def test_a_page_that_only_reads_refuses_every_act(run_dir: Path) -> None:
    with serving_in_thread([run_dir]) as address:
        assert httpx.get(f"{address}api/runs").json()["runs"][0]["acts"] is False
        for kind in ("fork", "score", "grade"):
            status, error = refusal(httpx.post(f"{address}api/runs/0/episodes/1/{kind}", json={}))
            assert status == 403
            assert "agentrl view --act RUN" in error


@pytest.mark.soak
@pytest.mark.timeout(180)
def test_a_turn_is_forked_scored_and_graded_on_a_page_that_acts_and_on_no_other(run_dir: Path) -> None:
    turn = open_run(run_dir).episode(1).record.turns[1]
    with acting(run_dir) as address, serving_in_thread([run_dir]) as reading, open_chromium() as browser:
        with looking(browser, address) as look:
            page = look.at("episode/0/1")
            page.get_by_label("weights").select_option(str(STEP))
            page.get_by_role("button", name="Grade again").click()
            expect(page.locator(".graded tr", has_text="reward")).to_have_text("reward0.250.25", timeout=ACT_MS)

            page.get_by_role("button", name="Score again").click()
            expect(page.get_by_label("Tokens coloured by")).to_have_value("difference", timeout=ACT_MS)
            acts = page.get_by_label("acts", exact=True)
            expect(acts).to_contain_text(
                re.compile(r"a mean of -\d.* in place of -\d.* nats a token, so the replies are (more|less) probable")
            )
            page.locator(".token").first.hover()
            expect(page.locator(".inspector")).to_contain_text("difference of log p")

            second = page.locator("#turn-1")
            second.get_by_label("continuations").select_option("2")
            second.get_by_role("button", name="Fork here").click()
            columns = second.locator(".member")
            expect(columns).to_have_count(3, timeout=ACT_MS)
            expect(columns.first).to_contain_text(f"tokens {len(turn.output_ids)}")
            expect(columns.last).to_contain_text(f"checkpoint {STEP}, 2")
            expect(columns.last.locator(".token").first).to_be_visible()
            page.get_by_label("weights").select_option("")
            second.get_by_role("button", name="Fork here").click()
            expect(columns).to_have_count(5, timeout=ACT_MS)
            expect(columns.nth(1)).to_contain_text("base, 1")
            expect(columns.last).to_contain_text(f"checkpoint {STEP}, 2")
            assert look.complaints == []
        with looking(browser, reading) as look:
            expect(look.at("episode/0/1").locator(".token").first).to_be_visible()
            expect(look.page.get_by_role("button", name="Fork here")).to_have_count(0)
