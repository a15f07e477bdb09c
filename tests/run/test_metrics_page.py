"""`/metrics`, read as Prometheus reads it."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentrl.config import RunConfig
from agentrl.engine.client import sglang_engine
from agentrl.proxy import ChatFormat, Proxy, open_proxy
from agentrl.run.metrics_page import metrics_text, with_metrics
from agentrl.run.view import RunView
from tests.engine.scripted_server import scripted_server, sound_states
from tests.instant_engine import InstantEngine

pytestmark = pytest.mark.anyio


def samples(text: str) -> dict[tuple[str, str], float]:
    """The value of each metric, by its name and its role."""
    families = list(text_string_to_metric_families(text))
    counters = {family.name for family in families if family.type == "counter"}
    assert counters == {family.name for family in families if family.name.startswith("agentrl_ignored_")}
    return {(one.name, one.labels.get("role", "")): one.value for family in families for one in family.samples}


def test_numbers_of_a_step_are_gauges_and_those_of_roles_have_them_as_a_label() -> None:
    step = {"loss": 0.5, "role_buyer_loss": 0.25, "role_buyer_2_loss": 2, "reward_mean": None, "note": "text"}
    text = metrics_text({**step, "kl-to.it": float("nan")}, 'a "run"\nof two\\lines', ("buyer", "buyer_2"))
    (family, odd) = text_string_to_metric_families(text)
    assert [one.labels["run"] for one in family.samples] == ['a "run"\nof two\\lines'] * 3
    assert odd.name == "agentrl_kl_to_it"
    found = samples(text)
    del found["agentrl_kl_to_it", ""]  # which is equal to nothing
    assert found == {("agentrl_loss", ""): 0.5, ("agentrl_loss", "buyer"): 0.25, ("agentrl_loss", "buyer_2"): 2.0}


async def test_a_run_shows_its_newest_step_and_what_goes_on(nano_format: ChatFormat) -> None:
    view = RunView(RunConfig(), steps=[{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])

    def middleware(proxy: Proxy) -> Any:
        return with_metrics(proxy, proxy.handle, "run-1", "127.0.0.1", "", view.metrics)

    async with (
        scripted_server(lambda body: list(sound_states(3, prompt_tokens=len(body["input_ids"])))) as server,
        sglang_engine([server.url]) as engine,
        open_proxy(engine, nano_format, "nano", middleware=middleware) as proxy,
        httpx2.AsyncClient(base_url=proxy.url, trust_env=False) as http,
    ):
        session = proxy.open_session()
        async with openai.AsyncOpenAI(base_url=proxy.base_url, api_key=session.key) as client:
            await client.chat.completions.create(
                model="nano", messages=[{"role": "user", "content": "1 + 1 ="}], service_tier="auto"
            )
        reply = await http.get("/metrics")
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert samples(reply.text) == {
            ("agentrl_step", ""): 2,
            ("agentrl_loss", ""): 1,
            ("agentrl_sessions_open", ""): 1,
            ("agentrl_generated_tokens", ""): 3,
            ("agentrl_ignored_service_tier_total", ""): 1,
            ("agentrl_engine_requests_in_flight", ""): 0,
        }
        assert (await http.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("host", "key", "given", "status"),
    [
        ("127.0.0.1", "admin", "", 200),
        ("0.0.0.0", "admin", "admin", 200),
        ("0.0.0.0", "admin", "another", 401),
        ("0.0.0.0", "", "", 401),
    ],
)
async def test_off_the_loopback_the_page_takes_the_admin_key(
    nano_format: ChatFormat, host: str, key: str, given: str, status: int
) -> None:
    def middleware(proxy: Proxy) -> Any:
        return with_metrics(proxy, proxy.handle, "run-1", host, key)

    async with (
        open_proxy(InstantEngine(), nano_format, "nano", host=host, middleware=middleware) as proxy,
        httpx2.AsyncClient(base_url=proxy.url, trust_env=False) as http,
    ):
        reply = await http.get("/metrics", headers={"authorization": f"Bearer {given}"} if given else {})
    assert (reply.status_code, "AGENTRL_ADMIN_KEY" in reply.text) == (status, status == 401)
