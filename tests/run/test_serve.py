"""`agentrl serve` as a program elsewhere sees it: a real process, the real command, HTTP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from agentrl import open_run
from agentrl.models import NANO
from agentrl.record.trajectory import TokenRecord
from agentrl.tasks.conversation_rows import read_conversation
from agentrl.tasks.tasks import list_tasks
from tests.rescoring import Rescorer


@dataclass
class Service:
    http: httpx2.Client
    out: Path = Path()
    """The directory that keeps its sessions."""
    page: str = ""
    """The address of the page that shows them."""

    def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        reply = self.http.request(method, path, json=body)
        assert reply.status_code == status, reply.text
        return reply.json()


@contextmanager
def serving(out: Path, model: Path = NANO) -> Iterator[Service]:
    with (out.parent / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "agentrl", "serve", "--model", str(model), "--out", str(out), "--view"],
            env={**os.environ, "AGENTRL_ADMIN_KEY": "admin"},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    page = (out.parent / "stderr").read_text().split("the page is at ")[1].split()[0]
    assert line.startswith(f"serving {model.name} at http://127.0.0.1:")
    with httpx2.Client(base_url=line.split()[-1], headers={"Authorization": "Bearer admin"}, timeout=60) as http:
        yield Service(http, out, page)
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0
    process.stdout.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("service") / "kept") as service:
        yield service


def test_a_session_from_opening_to_trajectories(service: Service, versions: Any) -> None:
    opened = service.ask("POST", "/sessions", {"max_tokens": 20, "temperature": 0.7})
    with openai.OpenAI(base_url=opened["base_url"], api_key=opened["api_key"]) as client:
        messages: list[Any] = [{"role": "user", "content": "12 + 30 ="}]
        first = client.chat.completions.create(model=opened["model"], messages=messages)
        messages += [first.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "1"}]
        second = client.chat.completions.create(model=opened["model"], messages=messages)
        path = f"/sessions/{opened['id']}"
        service.ask("POST", f"{path}/reward", {"reward": 0.25, "completion_id": second.id})
        closed = service.ask("POST", f"{path}/close", {"reward": 1.5})
        assert (closed["status"], closed["calls"], closed["reward"]) == ("ended", 2, 1.5)
        with pytest.raises(openai.ConflictError):
            client.with_options(max_retries=0).models.list()

    fetched = service.ask("GET", f"{path}/trajectories")
    record = TokenRecord.from_json(fetched["turns"])
    assert [turn.completion_id for turn in record.turns] == [first.id, second.id]
    assert [turn.temperature for turn in record.turns] == [0.7, 0.7]
    assert Rescorer(versions).largest_difference(record) < 1e-4
    (trajectory,) = fetched["trajectories"]
    trained = [r for r, t in zip(trajectory["returns"], trajectory["loss_mask"], strict=True) if t]
    assert set(trained) == {1.5, 0.25}
    assert path.rpartition("/")[2] in [s["id"] for s in service.ask("GET", "/sessions")["sessions"]]
    service.ask("DELETE", path)
    service.ask("GET", path, status=404)


def test_a_greedy_reply_is_not_to_be_trained_on(service: Service) -> None:
    opened = service.ask("POST", "/sessions", {"max_tokens": 3, "temperature": 0})
    with openai.OpenAI(base_url=opened["base_url"], api_key=opened["api_key"]) as client:
        client.chat.completions.create(model=opened["model"], messages=[{"role": "user", "content": "1 + 1 ="}])
    (trajectory,) = service.ask("GET", f"/sessions/{opened['id']}/trajectories")["trajectories"]
    assert not any(trajectory["loss_mask"])
    service.ask("DELETE", f"/sessions/{opened['id']}")


def test_a_role_has_a_reward_of_its_own(service: Service) -> None:
    opened = service.ask("POST", "/sessions", {"max_tokens": 3})
    for key in (opened["api_key"], f"{opened['api_key']}.helper"):
        with openai.OpenAI(base_url=opened["base_url"], api_key=key) as client:
            client.chat.completions.create(model=opened["model"], messages=[{"role": "user", "content": "1 + 1 ="}])
    path = f"/sessions/{opened['id']}"
    service.ask("POST", f"{path}/reward", {"reward": 0.5, "role": "helper"})
    refused = service.ask("POST", f"{path}/reward", {"reward": 0.5, "role": "helpr"}, status=400)["error"]["message"]
    assert refused.endswith("was made as 'helpr', those it has as ['', 'helper'].")
    service.ask("POST", f"{path}/close", {"reward": 1.0})
    fetched = service.ask("GET", f"{path}/trajectories")
    assert [(turn["role"], turn["role_reward"]) for turn in fetched["turns"]] == [("", None), ("helper", 0.5)]
    assert [path["returns"][-1] for path in fetched["trajectories"]] == [1.0, 0.5]
    conversations = fetched["conversations"]
    assert sorted(index for one in conversations for index in one["turns"]) == list(range(len(fetched["turns"])))
    assert all(one["main"] for one in conversations)


def test_a_session_that_was_closed_is_an_episode_on_the_page(service: Service, tmp_path: Path) -> None:
    opened = service.ask("POST", "/sessions", {"max_tokens": 8})
    path = f"/sessions/{opened['id']}"
    with openai.OpenAI(base_url=opened["base_url"], api_key=f"{opened['api_key']}.solver") as client:
        client.chat.completions.create(model=opened["model"], messages=[{"role": "user", "content": "2 + 3 ="}])
    service.ask("POST", f"{path}/reward", {"reward": 0.5, "role": "solver"})
    service.ask("POST", f"{path}/close", {"reward": 2.0})
    fetched = service.ask("GET", f"{path}/trajectories")
    run = open_run(service.out)
    still_open = service.ask("POST", "/sessions")["id"]
    (episode,) = run.episodes(newest_first=True, limit=1)
    assert (run.status, episode.reason, episode.reward) == ("running", "finished", 2.0)
    assert episode.details["session"]["id"] == opened["id"]
    assert episode.record.to_json() == fetched["turns"]
    assert [path.returns[-1] for path in episode.trajectories] == [0.5]
    with httpx2.Client(base_url=f"{service.page}api/", timeout=60) as page:
        (head,) = page.get("runs").json()["runs"]
        assert (head["kind"], head["status"], head["open_sessions"]) == ("service", "running", 1)
        (turn,) = page.get(f"runs/0/episodes/{episode.id}").json()["turns"]
        assert [message["text"] for message in turn["messages"]] == ["2 + 3 ="]
        exported = tmp_path / "learn.jsonl"
        exported.write_bytes(page.get(f"runs/0/export?format=sft&session={opened['id']}").content)
    service.ask("DELETE", f"/sessions/{still_open}")
    (row,) = list_tasks(str(exported))
    messages, *_ = read_conversation(row, "here")
    assert [message["role"] for message in messages] == ["user", "assistant"]


def test_what_was_closed_is_final(service: Service) -> None:
    opened = service.ask("POST", "/sessions", {"max_tokens": 3})
    path = f"/sessions/{opened['id']}"
    with openai.OpenAI(base_url=opened["base_url"], api_key=opened["api_key"]) as client:
        said = client.chat.completions.create(model=opened["model"], messages=[{"role": "user", "content": "1 + 1 ="}])
    service.ask("POST", f"{path}/reward", {"reward": 0.25})
    closed = service.ask("POST", f"{path}/close", {"reward": 1.0})
    kept = service.ask("GET", f"{path}/trajectories")
    for change in ({"reward": 2}, {"reward": 2, "completion_id": said.id}, {"reward": 2, "role": "helper"}):
        refused = service.ask("POST", f"{path}/reward", change, status=409)
        assert refused["error"]["code"] == "session_closed"
    service.ask("POST", f"{path}/close", {"reward": 2}, status=409)
    for again in ({}, {"reward": 1.0}):
        assert service.ask("POST", f"{path}/close", again) == closed, "whoever lost the answer may ask again"
    assert service.ask("GET", f"{path}/trajectories") == kept
    service.ask("DELETE", path)


def test_new_weights_are_loaded_into_the_service(service: Service, versions: Any) -> None:
    assert service.ask("POST", "/weights", {"path": str(versions[2]), "version": 2})["version"] == 2
    opened = service.ask("POST", "/sessions", {"max_tokens": 5})
    with openai.OpenAI(base_url=opened["base_url"], api_key=opened["api_key"]) as client:
        client.completions.create(model="nano", prompt="1")
    turns = service.ask("GET", f"/sessions/{opened['id']}/trajectories")["turns"]
    assert turns[0]["versions"] == [{"version": 2, "start": 0, "end": len(turns[0]["output_ids"])}]
    refused = service.ask("POST", "/weights", {"path": "/nonexistent", "version": 3}, status=400)
    assert refused["error"]["param"] == "path"
    for version in (1, 2):
        refused = service.ask("POST", "/weights", {"path": str(versions[version]), "version": version}, status=409)
        assert refused["error"]["message"].startswith("Version 2 is served: ")
    service.ask("DELETE", f"/sessions/{opened['id']}")


def test_bad_requests_are_refused(service: Service) -> None:
    service.ask("POST", "/sessions", {"temprature": 1}, status=400)
    service.ask("POST", "/sessions/ses_none/reward", {"reward": 1}, status=404)
    service.ask("PUT", "/sessions", status=404)
    opened = service.ask("POST", "/sessions")
    path = f"/sessions/{opened['id']}"
    assert service.ask("POST", f"{path}/reward", {"reward": "much"}, 400)["error"]["param"] == "reward"
    service.ask("POST", f"{path}/reward", {"reward": 1, "completion_id": "none"}, status=404)
    service.http.headers["Authorization"] = "Bearer wrong"
    service.ask("GET", "/sessions", status=401)
    service.http.headers["Authorization"] = "Bearer admin"
    service.ask("DELETE", path)


def test_prometheus_reads_how_the_service_does(service: Service) -> None:
    assert '\nagentrl_sessions_open{run="serve"} ' in service.http.get("/metrics", headers={"Authorization": "-"}).text


def test_a_start_does_not_sample_again_what_an_earlier_one_did(tmp_path: Path) -> None:
    replies = []
    for _ in range(2):
        with serving(tmp_path / "kept") as service:
            opened = service.ask("POST", "/sessions", {"max_tokens": 32})
            with openai.OpenAI(base_url=opened["base_url"], api_key=opened["api_key"]) as client:
                messages: Any = [{"role": "user", "content": "What is 4 + 5?"}]
                reply = client.chat.completions.create(model=opened["model"], messages=messages)
            replies.append(reply.choices[0].message.content)
    assert replies[0] != replies[1]
