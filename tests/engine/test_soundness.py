"""Nothing unsound leaves the engine: whatever a server answers, a call returns a sound generation or raises EngineError."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.engine.client import EngineLimits, SGLangEngine, sglang_engine
from agentrl.engine.client.stream import BadReplyError, GrowingReply
from agentrl.engine.protocol import Sampling
from agentrl.errors import EngineError
from agentrl.record.soundness import Expected, fault_of
from agentrl.record.tokens import Generation, VersionSpan
from tests.components import wait_until
from tests.engine.growing_replies import growing_replies
from tests.engine.scripted_server import Answer, Json, ScriptedServer, scripted_server, sound_states

VOCABULARY = 100
PROMPT = [7, 8, 9]
COUNT = 10
EXPECTED = Expected(max_new_tokens=COUNT, vocabulary=VOCABULARY, newest_version=3, only_version=0)


def assert_sound(generation: Generation, *, newest: int = 3) -> None:
    """What the trainer relies on."""
    assert all(type(token) is int and 0 <= token < VOCABULARY for token in generation.output_ids)
    assert len(generation.logprobs) == len(generation.output_ids) <= COUNT
    assert all(type(logprob) is float and -1000 <= logprob <= 0 for logprob in generation.logprobs)
    covered = [t for span in generation.versions for t in range(span.start, span.end)]
    assert covered == list(range(len(generation.output_ids)))
    assert all(type(span.version) is int and 0 <= span.version <= newest for span in generation.versions)
    assert generation.finish in ("stop", "length", "abort")


def set_logprob(value: Any) -> Callable[[Json], None]:
    def change(state: Json) -> None:
        state["meta_info"]["output_token_logprobs"][-1][0] = value

    return change


def set_id(value: Any) -> Callable[[Json], None]:
    def change(state: Json) -> None:
        state["output_ids"][-1] = value
        state["meta_info"]["output_token_logprobs"][-1][1] = value

    return change


def set_meta(name: str, value: Any) -> Callable[[Json], None]:
    def change(state: Json) -> None:
        state["meta_info"][name] = value

    return change


def set_version(value: Any) -> Callable[[Json], None]:
    """The version of the moment, of a server that does not report whose token is whose."""

    def change(state: Json) -> None:
        state["meta_info"].pop("weight_versions", None)
        state["meta_info"]["weight_version"] = value

    return change


def spans(*edges: tuple[Any, Any, Any]) -> Callable[[Json], None]:
    return set_meta("weight_versions", [{"version": v, "start": s, "end": e} for v, s, e in edges])


def other_token_scored(state: Json) -> None:
    state["meta_info"]["output_token_logprobs"][-1][1] += 1


def too_few_logprobs(state: Json) -> None:
    state["meta_info"]["output_token_logprobs"].pop()


def too_many_tokens(state: Json) -> None:
    state["output_ids"] += [1] * COUNT
    state["meta_info"]["output_token_logprobs"] += [[-1.0, 1, None]] * COUNT


IN_ANY_STATE: dict[str, Callable[[Json], None]] = {
    **{
        f"logprob {value!r}": set_logprob(value)
        for value in (None, math.nan, math.inf, -math.inf, 0.5, -3.4e38, "x", True)
    },
    **{f"id {value!r}": set_id(value) for value in (-1, VOCABULARY, 2**70, None, 1.0, "7", True)},
    "another token scored": other_token_scored,
    "too many tokens": too_many_tokens,
    "a logprob without its id": lambda s: s["meta_info"]["output_token_logprobs"].__setitem__(-1, [-0.5]),
    "logprobs that are no list": set_meta("output_token_logprobs", 3),
    "a version of the future": set_version("4"),
    "a version below zero": set_version("-1"),
    "a version that is no number": set_version(1.5),
    "a finish of no known kind": set_meta("finish_reason", {"type": "tired"}),
    "a finish that is text": set_meta("finish_reason", "stop"),
    "no meta_info": lambda s: s.update(meta_info=[]),
    "ids that are no list": lambda s: s.update(output_ids="12"),
}
IN_THE_LAST: dict[str, Callable[[Json], None]] = {
    "too few logprobs": too_few_logprobs,
    "short spans": spans(("0", 0, COUNT - 1)),
    "long spans": spans(("0", 0, COUNT + 1)),
    "a gap between spans": spans(("0", 0, 3), ("1", 4, COUNT)),
    "spans that overlap": spans(("0", 0, 5), ("1", 4, COUNT)),
    "spans in the wrong order": spans(("1", 5, COUNT), ("0", 0, 5)),
    "an empty span": spans(("0", 0, 0), ("1", 0, COUNT)),
    "no spans": spans(),
    "a span of the future": spans(("0", 0, 5), ("4", 5, COUNT)),
    "a span of no version": spans((None, 0, COUNT)),
    "edges that are no numbers": spans(("0", "0", COUNT)),
    "spans that are no spans": set_meta("weight_versions", [3]),
    "SGLang's NaN in the logits": set_meta("finish_reason", {"type": "stop", "matched": "NaN happened"}),
    "a stop token that is not its last": set_meta("finish_reason", {"type": "stop", "matched": 98}),
    "a failure inside the server": set_meta("finish_reason", {"type": "abort", "status_code": 500, "message": "oh"}),
}
FAULTS = IN_ANY_STATE | IN_THE_LAST


@st.composite
def unsound_streams(draw: st.DrawFn) -> list[Json]:
    """A sound stream in which one thing was changed."""
    states = sound_states(COUNT, piece=draw(st.integers(1, COUNT)))
    name = draw(st.sampled_from(sorted(FAULTS)))
    place = draw(st.integers(0, len(states) - 1)) if name in IN_ANY_STATE else -1
    FAULTS[name](states[place])
    return states


def cumulative(states: list[Json]) -> list[Json]:
    """The same stream from a server that sends the whole reply with every state."""
    whole: list[Json] = []
    ids: list[Any] = []
    scored: list[Any] = []
    for state in copy.deepcopy(states):
        ids, scored = ids + state["output_ids"], scored + state["meta_info"]["output_token_logprobs"]
        state["meta_info"]["output_token_logprobs"] = scored
        whole.append({**state, "output_ids": ids})
    return whole


def read(states: list[Any], *, incremental: bool = True) -> tuple[Generation | None, Generation, list[list[int]]]:
    """What a stream is read as: the whole reply, or None where it is refused; the beginning that is gone on from; and every state
    that was shown meanwhile."""
    reply = GrowingReply("url", incremental=incremental, prompt_tokens=3, expected=lambda: EXPECTED)
    shown: list[list[int]] = []
    try:
        for state in json.loads(json.dumps(states)):
            reply.grow(state)
            assert_sound(reply.so_far())
            shown.append(list(reply.output_ids))
        return reply.finished(), reply.so_far(), shown
    except EngineError as error:
        return None, getattr(error, "partial", None) or reply.so_far(), shown


@given(unsound_streams())
@settings(max_examples=400, deadline=None)
def test_every_unsound_stream_is_refused_and_what_was_sound_before_is_kept(states: list[Json]) -> None:
    generation, partial, shown = read(states)
    assert generation is None
    assert_sound(partial)
    assert partial.finish == "abort"
    assert partial.output_ids == list(range(len(partial.output_ids)))
    if shown and len(shown[-1]) <= len(partial.output_ids):
        assert shown[-1] == partial.output_ids[: len(shown[-1])]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 120) | st.floats() | st.sampled_from(["", "0", "stop", "default"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "version", "start"]), inner),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.data(), st.integers(1, COUNT), st.booleans())
@settings(max_examples=400, deadline=None)
def test_whatever_replaces_a_part_of_a_state_what_is_returned_is_sound(
    data: st.DataObject, piece: int, incremental: bool
) -> None:
    states = sound_states(COUNT, piece=piece)
    states = states if incremental else cumulative(states)
    state = data.draw(st.sampled_from(states))
    where = data.draw(st.sampled_from([state, state["meta_info"], *state["meta_info"]["output_token_logprobs"]]))
    key = data.draw(st.sampled_from(sorted(where) if isinstance(where, dict) else [0, 1]))
    where[key] = data.draw(JSON)
    generation, partial, _ = read(states, incremental=incremental)
    assert_sound(partial)
    if generation is not None:
        assert_sound(generation)


@given(st.integers(1, COUNT), st.booleans())
def test_a_sound_stream_is_read_as_it_is(piece: int, incremental: bool) -> None:
    states = sound_states(COUNT, piece=piece)
    states[-1]["meta_info"]["output_token_logprobs"][-1][0] = 2e-7  # a certain token, rounded
    generation, partial, shown = read(states if incremental else cumulative(states), incremental=incremental)
    assert generation is not None
    assert generation == partial
    assert generation.output_ids == list(range(COUNT)) == shown[-1]
    assert generation.logprobs == [-0.5] * (COUNT - 1) + [0.0]
    assert generation.versions == [VersionSpan(0, 0, COUNT)]


@given(st.integers(1, COUNT - 1), st.sampled_from([[1], "x", 5, None, {"output_ids": 3, "meta_info": {}}]))
def test_what_is_no_state_takes_nothing_away_from_what_came_before(piece: int, junk: Any) -> None:
    states = sound_states(COUNT, piece=piece)[:-1]
    generation, partial, _ = read([*states, junk])
    assert generation is None
    assert partial.output_ids == [token for state in states for token in state["output_ids"]]


@given(st.integers(0, COUNT), st.integers(0, COUNT), st.integers(1, COUNT), st.booleans())
def test_a_reply_that_sglang_aborts_in_its_queue_has_each_token_once(
    sent: int, unsent: int, piece: int, top: bool
) -> None:
    """Its last state holds what it has not sent yet, then all logprobs again, and the last token again."""
    count = min(COUNT, sent + unsent)
    whole = sound_states(count, piece=1)
    scored = [entry for state in whole for entry in state["meta_info"]["output_token_logprobs"]]
    states = [state for state in sound_states(sent, piece=piece) if sent]
    for state in states:
        state["meta_info"].update(finish_reason=None)
        state["meta_info"].pop("weight_versions", None)
    sent = min(sent, count)
    meta: Json = {
        "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
        "weight_version": "0",
        "weight_versions": [{"version": "0", "start": 0, "end": count}],
        "output_token_logprobs": scored[sent:] + scored,
        "completion_tokens": count,
    }
    if top:
        tops = [[[-0.5, token, None]] for token in range(count)]
        meta["output_top_logprobs"] = tops[sent:] + tops
        for state in states:
            ids = state["output_ids"]
            state["meta_info"]["output_top_logprobs"] = [tops[token] for token in ids]
    states.append({"output_ids": [*range(sent, count), *range(count)[-1:]], "meta_info": meta})
    generation, _, _ = read(states)
    assert generation is not None
    assert generation.finish == "abort"
    assert generation.output_ids == list(range(count))
    assert generation.logprobs == [-0.5] * count
    assert len(generation.top_logprobs) == (count if top else 0)


async def test_the_version_of_tokens_that_come_after_an_update_began_is_not_known(tmp_path: Path) -> None:
    """Until a reply's last state, a server names the version that it serves when it sends, not that of the tokens."""
    known: list[Generation] = []
    shown: list[int] = []

    async def look() -> None:
        """After the client has read what was sent: two tokens since the last look."""
        await wait_until(lambda: len(shown) == 2 * len(known), 40)
        ((_, reply),) = growing
        known.append(reply.so_far())

    async def update() -> None:
        await engine.update_weights(tmp_path, 1)

    def answer(body: Json) -> Answer:
        late = sound_states(COUNT, piece=2)
        for state in late[2:]:
            state["meta_info"]["weight_version"] = "1"  # made by version 0, and sent late
        return [look, late[0], look, update, late[1], look, late[2], look, *late[3:]]

    async with engine_over(answer) as (engine, _):
        with growing_replies() as growing:
            generation = await engine.generate(
                PROMPT, Sampling(max_new_tokens=COUNT), "s", lambda ids: shown.__setitem__(slice(None), ids)
            )
    assert [len(partial.output_ids) for partial in known] == [0, 2, 2, 2]
    assert generation.versions == [VersionSpan(0, 0, COUNT)]


def test_a_generation_is_judged_against_what_was_asked() -> None:
    sound = Generation(output_ids=[1, 2], logprobs=[-1.0, 0], versions=[VersionSpan(2, 0, 2)], finish="stop")
    assert fault_of(sound, EXPECTED) is None
    assert fault_of(sound, Expected(max_new_tokens=1)) == "it has 2 tokens, 1 were asked for at most"
    assert fault_of(sound, Expected(vocabulary=2)) == "token 1 is 2, outside the vocabulary of 2"
    assert fault_of(sound, Expected(top_logprobs=1)) == "it has 2 tokens and the most likely ones of 0"
    assert fault_of(Generation(output_ids=[], logprobs=[], versions=[], finish="stop"), EXPECTED) is not None


pytestmark = pytest.mark.anyio


@asynccontextmanager
async def engine_over(
    *answers: Callable[[Json], Answer],
) -> AsyncIterator[tuple[SGLangEngine, list[ScriptedServer]]]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted_server(answer)) for answer in answers]
        limits = EngineLimits(health_interval_s=0.05)
        yield (
            await stack.enter_async_context(
                sglang_engine([server.url for server in servers], limits=limits, vocabulary=VOCABULARY)
            ),
            servers,
        )


def goes_on(body: Json) -> Answer:
    """A sound server: ids count on from the length of the prompt."""
    states = sound_states(body["sampling_params"]["max_new_tokens"], first=len(body["input_ids"]) - len(PROMPT))
    for state in states:
        state["meta_info"]["prompt_tokens"] = len(body["input_ids"])
    return states


def spoiled(fault: Callable[[Json], None], place: int = -1) -> Callable[[Json], Answer]:
    def answer(body: Json) -> Answer:
        states = goes_on(body)
        assert isinstance(states, list)
        fault(states[max(place, -len(states))])
        return states

    return answer


@given(name=st.sampled_from(sorted(FAULTS)))
@settings(max_examples=len(FAULTS), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_unsound_reply_is_asked_for_again_elsewhere_from_its_sound_tokens(name: str) -> None:
    async def check() -> None:
        async with engine_over(spoiled(FAULTS[name]), goes_on) as (engine, (bad, good)):
            shown: list[list[int]] = []
            generation = await engine.generate(PROMPT, Sampling(max_new_tokens=COUNT), "s", shown.append)
            assert_sound(generation, newest=0)
            assert generation.output_ids == list(range(COUNT))
            assert shown == sorted(shown, key=len), "what was shown once stays"
            assert engine.fleet.bad_replies == len(bad.asked) == len(good.asked) == 1
            kept = good.asked[0]["input_ids"][len(PROMPT) :]
            assert kept == list(range(len(kept)))
            assert good.asked[0]["sampling_params"]["max_new_tokens"] == COUNT - len(kept)

    anyio.run(check)


async def test_when_no_server_says_anything_sound_the_call_fails_and_names_what_was_wrong() -> None:
    nan = spoiled(set_logprob(math.nan), place=0)
    async with engine_over(nan, nan) as (engine, _):
        with pytest.raises(EngineError, match=r"4 replies in a row could not be used.*the logprob of token \d is nan"):
            await engine.generate(PROMPT, Sampling(max_new_tokens=COUNT), "s")


@pytest.mark.parametrize(
    "broken",
    [
        lambda body: web.Response(status=500, text="Internal Server Error"),
        lambda body: [b"data: {\n\n"],
        lambda body: [b"data: [" + b"[" * 100_000 + b"\n\n"],
        lambda body: [[1, 2]],
    ],
    ids=["500", "no JSON", "deep JSON", "a list"],
)
async def test_a_reply_that_is_no_reply_is_asked_for_elsewhere(broken: Callable[[Json], Answer]) -> None:
    async with engine_over(broken, goes_on) as (engine, _):
        generation = await engine.generate(PROMPT, Sampling(max_new_tokens=COUNT), "s")
        assert generation.output_ids == list(range(COUNT))
        assert engine.fleet.bad_replies == 1


async def test_a_server_that_keeps_saying_what_cannot_be_right_is_taken_out_and_started_again() -> None:
    ill = True
    restarted: list[str] = []

    def answer(body: Json) -> Answer:
        return spoiled(set_logprob(None))(body) if ill else goes_on(body)

    async def restart(url: str) -> str:
        nonlocal ill
        restarted.append(url)
        ill = False
        return url

    async with scripted_server(answer) as bad, scripted_server(goes_on) as good:
        limits = EngineLimits(health_interval_s=0.05)
        async with sglang_engine([bad.url, good.url], limits=limits, restart=restart) as engine:
            for number in range(6):
                generation = await engine.generate(PROMPT, Sampling(max_new_tokens=COUNT), f"s{number}")
                assert generation.output_ids == list(range(COUNT))
                await anyio.sleep(0)
            await wait_until(lambda: len(engine.serving) == 2, 40)
            assert restarted == [bad.url]
            assert engine.fleet.failures == 1
            assert engine.fleet.bad_replies == 3


async def test_a_server_that_was_started_again_unseen_is_given_its_weights_before_it_is_believed(
    tmp_path: Path,
) -> None:
    async with engine_over(lambda body: []) as (engine, (server,)):

        def answer(body: Json) -> Answer:
            return list(sound_states(COUNT, version=server.version))

        server.answer = answer
        await engine.update_weights(tmp_path, 2)
        server.version = 0
        generation = await engine.generate(PROMPT, Sampling(max_new_tokens=COUNT), "s")
        assert generation.versions == [VersionSpan(2, 0, COUNT)]
        assert engine.fleet.failures == 1


def test_a_bad_reply_names_the_server_and_the_fault() -> None:
    states = sound_states(4)
    states[0]["output_ids"][1] = states[0]["meta_info"]["output_token_logprobs"][1][1] = VOCABULARY
    reply = GrowingReply("http://server", incremental=True, prompt_tokens=3, expected=lambda: EXPECTED)
    with pytest.raises(
        BadReplyError, match="http://server gave an unsound reply: token 1 is 100, outside the vocabulary of 100"
    ):
        reply.grow(states[0])


OUT_OF_MEMORY = {
    "text": lambda body: web.Response(status=500, text="Internal Server Error\n\nServer got itself in trouble"),
    "SGLang's refusal": lambda body: web.json_response(
        {"success": False, "message": "Failed to update weights: CUDA out of memory."}, status=400
    ),
    "no JSON": lambda body: web.Response(status=200, text="oh"),
}


@pytest.mark.parametrize("kind", sorted(OUT_OF_MEMORY))
@pytest.mark.parametrize("others", [0, 1])
async def test_a_server_that_fails_to_load_weights_is_started_again_with_them_and_the_run_goes_on(
    kind: str, others: int, tmp_path: Path
) -> None:
    ill = True

    def load(body: Json) -> web.Response:
        return OUT_OF_MEMORY[kind](body) if ill else web.json_response({"success": True})

    restarted: list[str] = []

    async def restart(url: str) -> str:
        nonlocal ill
        restarted.append(url)
        ill = False
        return url

    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted_server(lambda body: [], load))]
        servers += [await stack.enter_async_context(scripted_server(lambda body: [])) for _ in range(others)]
        for server in servers:
            server.answer = lambda body, server=server: list(sound_states(COUNT, version=server.version))  # type: ignore[misc]
        limits = EngineLimits(health_interval_s=0.05)
        engine = await stack.enter_async_context(
            sglang_engine([server.url for server in servers], limits=limits, restart=restart)
        )
        await engine.update_weights(tmp_path, 3)
        generation = await engine.generate(PROMPT, Sampling(max_new_tokens=COUNT), "s")
        assert generation.versions == [VersionSpan(3, 0, COUNT)]
        await wait_until(lambda: len(engine.serving) == 1 + others, 40)
        assert restarted == [servers[0].url]
        assert [server.version for server in servers] == [3] * (1 + others)


async def test_weights_that_no_server_takes_are_a_bounded_wait_that_names_the_reason(tmp_path: Path) -> None:
    async with scripted_server(goes_on, OUT_OF_MEMORY["text"]) as server:
        limits = EngineLimits(health_interval_s=0.05, request_timeout_s=1)
        async with sglang_engine([server.url], limits=limits) as engine:
            await engine.update_weights(tmp_path, 3)
            with pytest.raises(EngineError, match=r"0 of 1 servers in service.*answered 500"):
                await engine.generate(PROMPT, Sampling(max_new_tokens=COUNT), "s")


async def test_what_a_url_names_beside_the_server_is_used_and_never_shown() -> None:
    async with scripted_server(goes_on) as server:
        secret = server.url.replace("http://", "http://someone:s3cr3t@")
        async with sglang_engine([secret]) as engine:
            assert (await engine.generate(PROMPT, Sampling(max_new_tokens=2), "sk-agentrl-key")).output_ids == [0, 1]
            assert engine.serving == [server.url]
            assert "sk-agentrl-key" not in json.dumps(server.asked), "a session's key is not sent"
            server.answer = lambda body: web.Response(status=400, text="no")
            with pytest.raises(EngineError, match="answered 400: no") as refused:
                await engine.generate(PROMPT, Sampling(max_new_tokens=2), "s")
            assert "s3cr3t" not in str(refused.value)
    with pytest.raises(EngineError, match="cannot be reached") as unreachable:
        async with sglang_engine([secret]):
            pass
    assert "s3cr3t" not in str(unreachable.value)
