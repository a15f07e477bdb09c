"""An environment of verifiers 0.4, with a harness, two rewards and a metric: it knows nothing of agentrl."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI

__all__ = ["Ask", "Capitals"]
CAPITALS = {"France": "Paris", "Italy": "Rome"}


class CapitalData(vf.TaskData):
    answer: str


class Capital(vf.Task[CapitalData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.5)
    async def brief(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 20)

    @vf.metric
    async def characters(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class CapitalsConfig(vf.TasksetConfig):
    countries: int = 2


class Capitals(vf.Taskset[Capital, CapitalsConfig]):
    def load(self) -> Iterator[Capital]:
        for country, answer in [*CAPITALS.items()][: self.config.countries]:
            data = CapitalData(prompt=f"What is the capital of {country}?", answer=answer)
            yield Capital(data, self.config.task)


class Ask(vf.Harness[vf.HarnessConfig]):
    """Asks once, without a program of its own."""

    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any, **_: Any
    ) -> vf.ProgramResult:
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            messages = [{"role": "user", "content": data.prompt}]
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
