"""Start the embedded engine, or attach to servers that run already."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agentrl.child_process import child_process
from agentrl.config import EngineConfig
from agentrl.engine.sglang import SGLangEngine, sglang_engine
from agentrl.errors import EngineError


@asynccontextmanager
async def embedded_server(
    model_path: str | Path, config: EngineConfig, *, log: Path, seed: int = 0
) -> AsyncIterator[str]:
    """An embedded server of `model_path` in a process of its own, for the length of the context. Yields its URL."""
    args = [
        "agentrl.engine.embedded",
        f"--model-path={model_path}",
        f"--threads={config.threads}",
        f"--dtype={config.dtype}",
        f"--max-total-tokens={config.max_total_tokens}",
        f"--random-seed={seed}",
        "--exit-with-stdin",
    ]
    async with child_process("embedded engine", args, log=log, error=EngineError) as child:
        while not (line := await child.read_line(config.start_timeout_s)).startswith("listening on "):
            pass
        yield f"http://127.0.0.1:{line.split()[-1]}"


@asynccontextmanager
async def open_engine(
    model_path: str | Path, config: EngineConfig, *, log: Path, seed: int = 0
) -> AsyncIterator[SGLangEngine]:
    """The engine that `config` describes, for the length of the context."""
    options = {"request_timeout_s": config.request_timeout_s, "pause_mode": config.pause_mode}
    if config.urls:
        async with sglang_engine(config.urls, **options) as engine:  # type: ignore[arg-type]
            await engine.health()
            yield engine
    else:
        async with (
            embedded_server(model_path, config, log=log, seed=seed) as url,
            sglang_engine([url], **options) as engine,  # type: ignore[arg-type]
        ):
            yield engine
