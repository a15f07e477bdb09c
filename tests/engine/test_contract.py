"""What agentrl relies on in a server that speaks SGLang's native API, as requests and replies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
import torch
from anyio.abc import TaskStatus
from transformers import AutoModelForCausalLM

from agentrl.models import NANO
from tests.components import wait_until

pytestmark = pytest.mark.anyio
PROMPT = [1, 20, 30, 40]
TOLERANCE = 2e-3


class Server:
    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http, self.url = http, url

    async def post(self, path: str, body: dict[str, Any], status: int = 200) -> Any:
        async with self.http.post(self.url + path, json=body) as response:
            assert response.status == status, await response.text()
            text = await response.text()
            return json.loads(text) if text else None

    async def generate(self, ids: list[int] = PROMPT, **params: Any) -> Any:
        params = {"max_new_tokens": 8, "ignore_eos": True, **params}
        return await self.post("/generate", {"input_ids": ids, "sampling_params": params, "return_logprob": True})


@pytest.fixture
async def server(any_server_url: str) -> AsyncIterator[Server]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
        yield Server(http, any_server_url)


async def test_a_reply_has_ids_logprobs_spans_and_a_finish_reason(server: Server) -> None:
    reply = await server.generate()
    meta = reply["meta_info"]
    assert len(reply["output_ids"]) == 8
    assert [token for _, token, _ in meta["output_token_logprobs"]] == reply["output_ids"]
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (4, 8)
    assert meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 8}]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
async def test_logprobs_are_those_after_temperature(server: Server, temperature: float) -> None:
    reply = await server.generate(temperature=temperature)
    ids = PROMPT + reply["output_ids"]
    model = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        scored = torch.log_softmax(model(torch.tensor([ids])).logits[0] / temperature, -1)
    for position, (logprob, token, _) in enumerate(reply["meta_info"]["output_token_logprobs"]):
        assert logprob == pytest.approx(float(scored[3 + position, token]), abs=1e-4)


@pytest.mark.parametrize("again", [{"temperature": 0}, {"temperature": 1.7, "top_k": 1}])
async def test_temperature_zero_is_greedy_and_a_top_k_of_one_too(server: Server, again: dict[str, float]) -> None:
    replies = [await server.generate(**params) for params in ({"temperature": 0}, again)]
    assert replies[0]["output_ids"] == replies[1]["output_ids"]
    assert all(logprob <= 0 for logprob, _, _ in replies[0]["meta_info"]["output_token_logprobs"])


async def test_sampling_follows_the_distribution(server: Server) -> None:
    """Frequencies of the first token over many draws, against its probabilities: five standard errors, which chance alone would
    exceed once in a million runs."""
    draws = 3000
    counts: dict[int, int] = {}
    top: list[Any] = []

    async def draw(_: int) -> None:
        body = {
            "input_ids": PROMPT,
            "sampling_params": {"max_new_tokens": 1, "ignore_eos": True},
            "return_logprob": True,
            "top_logprobs_num": 3,
        }
        reply = await server.post("/generate", body)
        token = reply["output_ids"][0]
        counts[token] = counts.get(token, 0) + 1
        top[:] = reply["meta_info"]["output_top_logprobs"][0]

    for _ in range(draws // 100):
        async with anyio.create_task_group() as group:
            for index in range(100):
                group.start_soon(draw, index)
    assert len(top) == 3
    for logprob, token, _ in top:
        p = float(torch.tensor(logprob).exp())
        assert abs(counts.get(token, 0) / draws - p) < 5 * (p * (1 - p) / draws) ** 0.5


async def first_token(server: Server, ids: list[int] = PROMPT, **params: Any) -> tuple[int, dict[int, float]]:
    """The first token of a reply, and the logprobs of the ten likeliest, from the likeliest on."""
    params = {"max_new_tokens": 1, "ignore_eos": True, **params}
    body = {"input_ids": ids, "sampling_params": params, "return_logprob": True, "top_logprobs_num": 10}
    reply = await server.post("/generate", body)
    (top,) = reply["meta_info"]["output_top_logprobs"]
    return reply["output_ids"][0], {token: logprob for logprob, token, _ in top}


@pytest.mark.parametrize(("cut", "left"), [({"top_p": 1e-6}, 1), ({"top_k": 2}, 2), ({"min_p": 1.0}, 1)])
async def test_a_cut_leaves_the_likeliest_tokens_and_the_logprobs_as_they_were(
    server: Server, cut: dict[str, float], left: int
) -> None:
    _, free = await first_token(server)
    for _ in range(20):
        token, seen = await first_token(server, **cut)
        assert seen == pytest.approx(free, abs=TOLERANCE)
        assert token in list(free)[:left]


async def test_a_bias_is_added_to_a_logit_and_can_force_a_token(server: Server) -> None:
    _, free = await first_token(server)
    token, other = list(free)[:2]
    for bias in (-0.5, 1.5):
        _, biased = await first_token(server, logit_bias={other: bias})
        assert biased[other] - biased[token] == pytest.approx(free[other] - free[token] + bias, abs=TOLERANCE)
    assert (await server.generate(logit_bias={other: 100}))["output_ids"] == [other] * 8


@pytest.mark.parametrize(("frequency", "presence"), [(0.4, 0.0), (0.0, 0.7), (-0.3, 0.2)])
async def test_penalties_are_taken_off_the_logits_of_what_the_reply_holds(
    server: Server, frequency: float, presence: float
) -> None:
    params = {"frequency_penalty": frequency, "presence_penalty": presence, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": PROMPT, "sampling_params": {**params, "max_new_tokens": 12}, "return_logprob": True}
    reply = await server.post("/generate", {**body, "top_logprobs_num": 10})
    for place, top in enumerate(reply["meta_info"]["output_top_logprobs"]):
        said = reply["output_ids"][:place]
        _, free = await first_token(server, PROMPT + said)
        taken_off = {token: frequency * said.count(token) + presence * (token in said) for token in free}
        moved = [logprob + taken_off[token] - free[token] for logprob, token, _ in top if token in free]
        assert max(moved) - min(moved) < TOLERANCE


async def test_stop_token_and_stop_string_end_a_reply_and_are_reported(server: Server) -> None:
    free = await server.generate(temperature=0, max_new_tokens=30)
    stop_token = free["output_ids"][5]
    stopped = await server.generate(temperature=0, max_new_tokens=30, stop_token_ids=[stop_token], ignore_eos=False)
    end = free["output_ids"].index(stop_token) + 1
    assert stopped["output_ids"] == free["output_ids"][:end]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop_token}

    text = free["text"][3:5]
    stopped = await server.generate(temperature=0, max_new_tokens=30, stop=[text])
    count = len(stopped["output_ids"])
    assert stopped["output_ids"] == free["output_ids"][:count]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": text}
    assert text not in stopped["text"], "the stop string is cut from the text, not from the ids"


async def test_the_pieces_of_a_stream_make_the_whole_reply(server: Server) -> None:
    params = {"max_new_tokens": 40, "ignore_eos": True, "stream_interval": 8}
    body = {"input_ids": PROMPT, "sampling_params": params, "return_logprob": True, "stream": True}
    states: list[Any] = []
    async with server.http.post(server.url + "/generate", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                states.append(json.loads(line[6:]))
    ids = [token for state in states for token in state["output_ids"]]
    scored = [entry for state in states for entry in state["meta_info"]["output_token_logprobs"]]
    assert 3 <= len(states) <= 8, "the first token comes at once, then eight at a time"
    assert len(ids) == 40
    assert [token for _, token, _ in scored] == ids
    assert states[-1]["meta_info"]["finish_reason"]["type"] == "length"
    assert states[-1]["meta_info"]["weight_versions"][-1]["end"] == 40
    async with server.http.get(server.url + "/server_info") as response:
        assert (await response.json())["incremental_streaming_output"] is True


async def test_a_stream_that_is_aborted_ends_with_what_there_is(server: Server) -> None:
    body = {"rid": "streamed", "input_ids": PROMPT, "sampling_params": {"max_new_tokens": 800, "ignore_eos": True}}
    ids: list[int] = []
    state: Any = None
    aborted = False
    async with server.http.post(server.url + "/generate", json={**body, "return_logprob": True, "stream": True}) as got:
        async for line in got.content:
            if line.startswith(b"data: {"):
                state = json.loads(line[6:])
                ids += state["output_ids"]
                if len(ids) >= 5 and not aborted:
                    aborted = True
                    await server.post("/abort_request", {"rid": "streamed"})
    assert state["meta_info"]["finish_reason"]["type"] == "abort"
    assert 5 <= len(ids) < 800


async def open_request(server: Server, replies: list[Any], rid: str, tokens: int = 400) -> None:
    params = {"max_new_tokens": tokens, "ignore_eos": True}
    body = {"rid": rid, "input_ids": PROMPT, "sampling_params": params, "return_logprob": True}
    replies.append(await server.post("/generate", body))


async def stream_request(
    server: Server,
    replies: list[Any],
    rid: str,
    tokens: int = 400,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """An open request that says when its first tokens are there."""
    params = {"max_new_tokens": tokens, "ignore_eos": True, "stream_interval": 1}
    body = {"rid": rid, "input_ids": PROMPT, "sampling_params": params, "return_logprob": True, "stream": True}
    ids: list[int] = []
    async with server.http.post(server.url + "/generate", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                state = json.loads(line.removeprefix(b"data: "))
                if not ids and state["output_ids"]:
                    task_status.started()
                ids += state["output_ids"]
    replies.append({**state, "output_ids": ids})


async def test_abort_request_returns_what_there_is(server: Server) -> None:
    replies: list[Any] = []
    async with anyio.create_task_group() as group:
        await group.start(stream_request, server, replies, "to-abort")
        await server.post("/abort_request", {"rid": "to-abort"})
    assert replies[0]["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(replies[0]["output_ids"]) < 400


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_pause_holds_replies_open_and_an_update_splits_their_versions(
    server: Server, versions: list[Path], mode: str
) -> None:
    replies: list[Any] = []
    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as starting:
            for index in range(4):
                starting.start_soon(group.start, stream_request, server, replies, f"{mode}-{index}")
        await server.post("/pause_generation", {"mode": mode})
        update = {"model_path": str(versions[1]), "weight_version": "1", "flush_cache": mode == "retract"}
        assert (await server.post("/update_weights_from_disk", update))["success"] is True
        await anyio.sleep(0.1)
        assert not replies, "a paused server went on"
        await server.post("/continue_generation", {})
    assert all(len(reply["output_ids"]) == 400 for reply in replies)
    for reply in replies:
        spans = reply["meta_info"]["weight_versions"]
        assert [span["version"] for span in spans] == ["0", "1"]
        assert spans[0]["end"] == spans[1]["start"]
    await server.post("/update_weights_from_disk", {"model_path": str(versions[0]), "weight_version": "0"})


async def test_pause_mode_abort_hands_open_replies_back_and_holds_new_ones(server: Server) -> None:
    replies: list[Any] = []
    late: list[Any] = []
    async with anyio.create_task_group() as group:
        async with anyio.create_task_group() as starting:
            for index in range(3):
                starting.start_soon(group.start, stream_request, server, replies, f"abort-{index}")
        await server.post("/pause_generation", {"mode": "abort"})
        group.start_soon(open_request, server, late, "late", 5)
        await wait_until(lambda: len(replies) == 3, 40)
        assert [reply["meta_info"]["finish_reason"]["type"] for reply in replies] == ["abort"] * 3
        await anyio.sleep(0.2)
        assert not late, "a paused server answered"
        await server.post("/continue_generation", {})
    assert len(late[0]["output_ids"]) == 5


async def test_weights_that_do_not_fit_change_nothing(server: Server, tmp_path: Path) -> None:
    before = await server.generate(temperature=0)
    refused = await server.post("/update_weights_from_disk", {"model_path": str(tmp_path)}, status=400)
    assert refused["success"] is False
    assert refused["message"]
    assert (await server.generate(temperature=0))["output_ids"] == before["output_ids"]


async def test_a_prompt_beyond_the_context_is_refused(server: Server) -> None:
    body = {"input_ids": [1] * 1024, "sampling_params": {"max_new_tokens": 4}}
    refused = await server.post("/generate", body, status=400)
    assert "longer than the model's context length" in refused["error"]["message"]


@pytest.mark.parametrize("body", [{"input_ids": []}, {"input_ids": [1], "sampling_params": {"temperature": -1}}])
async def test_a_bad_request_is_refused(server: Server, body: dict[str, Any]) -> None:
    refused = await server.post("/generate", body, status=400)
    assert refused["error"]["message"]


async def test_a_client_that_leaves_frees_its_place(server: Server) -> None:
    async with anyio.create_task_group() as group:
        await group.start(stream_request, server, [], "left")
        group.cancel_scope.cancel()
    body = {"rid": "left", "input_ids": PROMPT, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    with anyio.fail_after(40):
        while True:
            async with server.http.post(server.url + "/generate", json=body) as response:
                reply = await response.json()
            if response.status == 200:
                break
            assert "Duplicate request ID" in reply["error"]["message"]
            await anyio.sleep(0.1)
    assert len(reply["output_ids"]) == 3


async def test_many_requests_at_once_all_end(server: Server) -> None:
    replies: list[Any] = []
    async with anyio.create_task_group() as group:
        for index in range(150):
            group.start_soon(open_request, server, replies, f"load-{index}", 10)
    assert {len(reply["output_ids"]) for reply in replies} == {10}
