"""The viewer's server over loopback: what it answers about a run, and whom it does not answer."""

from __future__ import annotations

import json
import shutil
import sqlite3
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from agentrl import open_run
from agentrl.config import load_config
from agentrl.evaluation.directory import keep_episodes
from agentrl.proxy import ChatFormat
from agentrl.record.end_reason import EndReason
from agentrl.store.batches import trained_step
from agentrl.store.changes import InsertEpisode, OpenGroup
from agentrl.store.outcome import Outcome
from agentrl.store.store import Store
from agentrl.viewer.server import serving, serving_in_thread
from tests.recorded_run import record_run
from tests.viewer.shown_run import ANSWER, CONVERSATION, RESULT, make_shown_run

HOSTILE = '</script><img src=x onerror=alert(1)>\x1b]0;owned\x07\x1b[2J\u202eright to left\x00 & "quotes" \' \\u0041 <!-- \u2028'
LONG_LINE = "x" * 10_000_000


@pytest.fixture
def run_dir(tmp_path: Path, nano_format: ChatFormat) -> Path:
    return make_shown_run(tmp_path / "run", nano_format)


@pytest.fixture
def http(run_dir: Path) -> Iterator[httpx.Client]:
    with serving_in_thread([run_dir]) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


def asked(http: httpx.Client, path: str) -> Any:
    answer = http.get(f"api/runs{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids(http: httpx.Client, query: str) -> list[int]:
    return [episode["id"] for episode in asked(http, f"/0/episodes?{query}")["episodes"]]


def test_a_run_is_told_with_its_curves_and_its_verdict(http: httpx.Client, run_dir: Path) -> None:
    (head,) = asked(http, "")["runs"]
    assert (head["name"], head["kind"], head["status"], head["step"]) == ("run", "run", "stopped", 2)
    whole = asked(http, "/0")
    assert whole["config"]["rollout"]["group_size"] == 3
    assert [(restart["step"], restart["made_at"]) for restart in whole["restarts"]] == [(0, {})]
    assert asked(http, "/0/metrics?after=1")["steps"] == [{"step": 2, "reward_mean": 0.5, "loss": None}]
    rewards = asked(http, "/0/rewards?size=3")
    assert (rewards["first_group"], rewards["last_group"], rewards["groups"]) == ([0, 3], [2, 4], [3, 2])
    assert rewards["mean"] == [1.0, 2.0]  # the groups' rewards are 0, 1 and 2, but for the last, which has 3 alone
    assert asked(http, "/0/audit")["violations"] == ["group 4 was closed with 2 of 3 episodes accounted for"]


def test_a_start_says_when_its_checkpoints_were_made(http: httpx.Client, run_dir: Path) -> None:
    with Store(run_dir / "store.sqlite") as store:
        trained = trained_step(1, ((0, 3),), [[(0, number) for number in range(3)]], 1)
        store.commit_checkpoint(run_dir / "checkpoints/step-1", 1, [trained])
    (start,) = asked(http, "/0")["restarts"]
    assert list(start["made_at"]) == ["1"]
    assert start["made_at"]["1"] >= start["started_at"]


def test_the_gain_of_asynchrony_is_that_of_the_steps_that_a_checkpoint_contains_with_the_groups_that_were_dropped(
    http: httpx.Client, run_dir: Path
) -> None:
    assert asked(http, "/0/speedup") is None
    with Store(run_dir / "store.sqlite") as store:
        trained = trained_step(1, ((0, 3), (1, 3)), [[(group, number) for group in (0, 1) for number in range(3)]], 1)
        store.commit_checkpoint(run_dir / "checkpoints/step-1", 1, [trained])
    with closing(sqlite3.connect(run_dir / "store.sqlite")) as db, db:
        db.execute(
            "UPDATE groups SET version = 0"
        )  # the dropped one, which ended in a failure too, began in the first step
        db.execute("UPDATE episodes SET duration_s = CASE group_id WHEN 4 THEN 5.0 ELSE 2.0 END")
    row = {"step": 1, "step_s": 4.0, "wait_s": 1.0, "train_s": 2.0, "pause_s": 1.0}
    (run_dir / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert asked(http, "/0/speedup") == {"gain": 8 / 4, "bound": 8 / 3, "efficiency": 0.75, "steps": 1}  # on 64 slots


def test_a_run_that_has_not_begun_is_shown_as_one_that_runs(tmp_path: Path) -> None:
    with serving_in_thread([tmp_path / "later"]) as address:
        (head,) = httpx.get(f"{address}api/runs").json()["runs"]
        assert (head["status"], head["steps"]) == ("running", 0)
        assert httpx.get(f"{address}api/runs/0").status_code == 404


def test_a_run_whose_episodes_were_asked_for_before_it_began_is_read_in_messages(
    tmp_path: Path, nano_format: ChatFormat
) -> None:
    with (
        serving_in_thread([tmp_path / "run"]) as address,
        httpx.Client(base_url=f"{address}api/runs/0/", timeout=60) as client,
    ):
        assert client.get("episodes").status_code == 404
        make_shown_run(tmp_path / "run", nano_format)
        turn = client.get(f"episodes/{CONVERSATION}").json()["turns"][0]
        assert [message["role"] for message in turn["messages"]] == ["system", "user"]


def test_a_run_that_takes_the_place_of_another_has_curves_of_its_own(
    http: httpx.Client, run_dir: Path, nano_format: ChatFormat
) -> None:
    assert (asked(http, "/0/rewards")["last_group"][-1], asked(http, "")["runs"][0]["step"]) == (4, 2)
    shutil.rmtree(run_dir)
    make_shown_run(run_dir, nano_format)
    (run_dir / "metrics.jsonl").unlink()
    config = json.loads((run_dir / "config.json").read_bytes()) | {"steps": 77}
    (run_dir / "config.json").write_text(json.dumps(config))
    with closing(sqlite3.connect(run_dir / "store.sqlite")) as db, db:
        db.execute("UPDATE episodes SET reward = 7")
    assert set(asked(http, "/0/rewards")["mean"]) == {7.0}
    (head,) = asked(http, "")["runs"]
    assert (head["step"], head["steps"], asked(http, "/0")["config"]["steps"]) == (0, 77, 77)


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("old", "unopened", "new")]
    for path in paths:
        record_run(path, steps=1)
    (paths[0] / "config.json").write_text('{"no": "such key"}')
    (
        paths[1] / "store.sqlite-wal"
    ).mkdir()  # as on a full disk, where SQLite cannot make the file that it reads a log with
    with serving_in_thread(paths) as address:
        assert [run["name"] for run in httpx.get(f"{address}api/runs").json()["runs"]] == ["old", "unopened", "new"]
        assert "none of this version" in httpx.get(f"{address}api/runs/0").json()["error"]
        assert "make room" in httpx.get(f"{address}api/runs/1").json()["error"]


def test_episodes_are_filtered_sorted_and_paged(http: httpx.Client) -> None:
    assert ids(http, "limit=3") == [14, 13, 12]
    assert ids(http, "task=1") == [6, 5, 4]
    assert ids(http, "group=4&reason=finished") == [13]
    assert ids(http, "reason=failed") == [14]
    assert ids(http, "min_reward=0.5&max_reward=1&sort=oldest") == [2, 5, 8, 11]
    assert ids(http, "sort=best&limit=3") == [13, 12, 9]
    assert ids(http, "text=what%20IS%202") == [13]
    assert ids(http, "text=it%20broke") == [14]
    assert ids(http, "role=critic") == []
    assert ids(http, "cut=true") == [13]  # its last token is of newer weights
    assert ids(http, "cut=true&text=it%20broke") == []
    assert ids(http, "step=7") == []
    for sort in ("newest", "oldest", "best", "worst"):
        whole, paged, cursor = ids(http, f"sort={sort}"), list[int](), ""
        while cursor is not None:
            page = asked(http, f"/0/episodes?sort={sort}&limit=4&cursor={cursor}")
            paged += [episode["id"] for episode in page["episodes"]]
            cursor = page["cursor"]
        assert paged == whole
        assert sorted(whole) == [*range(1, 15)]


def test_an_episode_is_told_in_messages_and_down_to_the_token(http: httpx.Client, nano_format: ChatFormat) -> None:
    answer = asked(http, f"/0/episodes/{CONVERSATION}")
    first, second = answer["turns"]
    assert [(message["role"], message["text"]) for message in first["messages"]] == [
        ("system", "Be brief."),
        ("user", "What is 2 + 3?"),
    ]
    reply = first["reply"]
    assert (reply["text"], reply["thought"]) == ("I add.", "add")
    assert reply["tool_calls"] == [{"name": "add", "arguments": {"a": 2}}]
    assert [(message["role"], message["text"]) for message in second["messages"]] == [("tool", "5")]
    assert (second["parent"], second["reply"]["text"], second["return"]) == (0, "It is 5.", 3.0)
    tokens = second["reply"]["tokens"]
    assert "".join(tokens["text"]) == ANSWER
    assert tokens["ids"] == nano_format.tokenizer.encode(ANSWER)
    assert tokens["versions"] == [0] * (len(tokens["ids"]) - 1) + [1]
    assert set(tokens["loss_mask"]) == {True}
    assert answer["replay"].startswith("agentrl replay ")
    assert answer["episode"]["metrics"] == {"x": 1.5}


def test_the_neighbours_of_an_episode_are_those_that_the_filters_leave_in_their_order(http: httpx.Client) -> None:
    def neighbours(number: int, query: str = "") -> tuple[Any, Any]:
        found = asked(http, f"/0/episodes/{number}/neighbours?{query}")
        return found["previous"], found["next"]

    assert neighbours(13) == (12, 14)
    assert (neighbours(1), neighbours(14)) == ((None, 2), (13, None))
    assert neighbours(5, "task=1") == (4, 6)
    assert neighbours(6, "task=1&sort=oldest") == (5, None)
    assert neighbours(12, "sort=best") == (13, 9)
    assert neighbours(4, "sort=worst") == (1, 7)
    assert neighbours(1, "cut=true") == (None, 13)


def test_the_best_of_each_group_come_without_their_near_copies(http: httpx.Client) -> None:
    assert ids(http, "sort=best&best_of_group=true") == [13, 12, 9, 6, 3]
    assert ids(http, "best_of_group=true&task=1") == [6]


def test_an_episode_of_an_evaluation_offers_no_replay_which_would_refuse_it(tmp_path: Path) -> None:
    config = record_run(tmp_path / "run", steps=1)
    with keep_episodes(tmp_path / "evaluation", {}, config) as kept:
        kept.add(0, 0, 0, Outcome(reason=EndReason.FINISHED))
    with serving_in_thread([tmp_path / "evaluation"]) as address:
        assert httpx.get(f"{address}api/runs/0/episodes/1", timeout=60).json()["replay"] is None


def test_an_episode_that_an_endpoint_played_shows_its_verdict_without_a_tokenizer(tmp_path: Path) -> None:
    config = load_config((), {"model.path": str(tmp_path / "its-name")})
    with keep_episodes(tmp_path / "evaluation", {}, config) as kept:
        kept.add(0, 0, 0, Outcome(reason=EndReason.FINISHED, details='{"verdict": {"passed": 2}}'))
    with serving_in_thread([tmp_path / "evaluation"]) as address:
        shown = httpx.get(f"{address}api/runs/0/episodes/1", timeout=60).json()
    assert (shown.get("turns"), shown.get("details")) == ([], {"verdict": {"passed": 2}}), shown


def test_an_episode_has_what_the_trainer_and_the_grader_alone_know(run_dir: Path, http: httpx.Client) -> None:
    count = len(open_run(run_dir).episode(CONVERSATION).record.turns[0].output_ids)
    total = sum(len(turn.output_ids) for turn in open_run(run_dir).episode(CONVERSATION).record.turns)
    column = b"f" + array("f", [-0.5] * count + [float("nan")] * (total - count)).tobytes()
    with closing(sqlite3.connect(run_dir / "store.sqlite")) as db, db:
        db.execute("INSERT INTO token_figures VALUES (?, ?, ?, ?)", (CONVERSATION, *(column,) * 3))
        db.execute("UPDATE episodes SET details = ? WHERE id = ?", ('{"verdict": {"passed": 2}}', CONVERSATION))
    answer = asked(http, f"/0/episodes/{CONVERSATION}")
    first, second = (turn["reply"]["tokens"] for turn in answer["turns"])
    assert (first["proximal"], first["entropy"], first["advantages"]) == ([-0.5] * count,) * 3
    assert second["proximal"] is None  # the step did not train on it
    assert answer["details"] == {"verdict": {"passed": 2}}


def test_a_group_is_told_with_its_advantages(http: httpx.Client) -> None:
    group = asked(http, "/0/groups/0")
    assert [episode["advantage"] for episode in group["episodes"]] == pytest.approx([-1, 0, 1], abs=1e-5)
    assert asked(http, "/0/groups/4")["rejected"] == "too few episodes"


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/0/episodes?task=x", 400, "task = 'x': Input should be a valid integer"),
        ("/0/episodes?reason=gone", 400, "reason = 'gone': Input should be"),
        ("/0/episodes?sort=up", 400, "sort = 'up': Input should be 'oldest', 'newest', 'best' or 'worst'"),
        ("/0/export?format=pdf", 400, "use one of jsonl, html, sft"),
        ("/0/episodes/99", 404, "no episode 99; its episodes are 1 to 14"),
        ("/0/groups/99", 404, "no group 99"),
        ("/7", 404, "there is no run 7"),
        ("/0/nothing", 404, "404"),
        ("/0/episodes/99999999999999999999999", 404, "404"),
        ("/0/metrics?after=x", 400, "after = 'x': Input should be a valid integer"),
    ],
)
def test_what_cannot_be_answered_is_said(path: str, status: int, says: str, http: httpx.Client) -> None:
    answer = http.get(f"api/runs{path}")
    assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.text


def test_a_page_of_another_name_is_refused_and_every_answer_forbids_what_is_not_the_pages_own(
    http: httpx.Client,
) -> None:
    refused = http.get("api/runs", headers={"Host": "evil.example"})
    assert refused.status_code == 403
    for answer in (refused, http.get("api/runs"), http.get("static/../server.py"), http.get("static/none.js")):
        assert "default-src 'none'; script-src 'self'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert http.get("static/%2e%2e/server.py").status_code == 404
    assert http.get("api/runs").headers["Cache-Control"] == "no-store"


def test_elsewhere_than_on_loopback_one_needs_the_token(run_dir: Path) -> None:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving([run_dir], "0.0.0.0")) as address,
        httpx.Client() as browser,
    ):
        base, _, token = address.replace("0.0.0.0", "127.0.0.1").partition("?token=")
        assert len(token) > 20
        assert browser.get(f"{base}api/runs").status_code == 403
        assert browser.get(f"{base}?token=wrong").status_code == 403
        entered = browser.get(f"{base}?token={token}")
        assert (entered.status_code, entered.headers["Location"]) == (303, "/")
        assert "HttpOnly" in entered.headers["Set-Cookie"]
        assert "SameSite=Strict" in entered.headers["Set-Cookie"]
        assert browser.get(f"{base}api/runs").status_code == 200


def test_hostile_text_in_every_field_is_json_and_nothing_but_text(tmp_path: Path, nano_format: ChatFormat) -> None:
    written = [{"role": "system", "content": HOSTILE}, {"role": "user", "content": HOSTILE}]
    run_dir = make_shown_run(
        tmp_path / HOSTILE[:9].replace("/", "_"), nano_format, written, RESULT | {"content": HOSTILE}, HOSTILE, HOSTILE
    )
    metrics = {HOSTILE: 1.0, "\ud800": float("inf")}
    with Store(run_dir / "store.sqlite") as store:
        ended = Outcome(reason=EndReason.ERROR, error=LONG_LINE, metrics=metrics)
        store.write([OpenGroup(5, 0, 5, digest=HOSTILE), InsertEpisode(5, 0, 0, ended)])
    with serving_in_thread([run_dir]) as address, httpx.Client(base_url=f"{address}api/runs/0/", timeout=60) as http:
        turns = json.loads(http.get(f"episodes/{CONVERSATION}").content)["turns"]
        texts = [message["text"] for turn in turns for message in turn["messages"]]
        assert [text.replace("\x00", "") for text in texts] == [HOSTILE.replace("\x00", "")] * 3
        reply = turns[1]["reply"]
        assert HOSTILE[:30] in reply["text"]
        assert "".join(reply["tokens"]["text"]).startswith(HOSTILE[:30])
        assert [turns[1]["role"], turns[1]["model"], turns[1]["alterations"]] == [HOSTILE, HOSTILE, {HOSTILE: HOSTILE}]
        assert http.get("groups/4").json()["rejected"] == HOSTILE
        (listed,) = http.get("episodes?group=5").json()["episodes"]
        assert listed["metrics"] == {HOSTILE: 1.0, "?": None}
        assert listed["error"].startswith("xxx")
        page = http.get("export?format=html&group=4").text
        assert "<script" not in page
        assert "<img src=x" not in page
        assert "&lt;img src=x onerror=alert(1)&gt;" in page
        assert not {"\x1b", "\x07", "\x00", "\u202e"} & set(page)
        assert "default-src 'none'; style-src 'sha256-" in page
