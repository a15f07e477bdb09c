"""`agentrl eval`: run an evaluation, and print what came of it."""

from __future__ import annotations

import json
from pathlib import Path

from agentrl.cli.terminal import show_evaluation
from agentrl.config import RunConfig
from agentrl.evaluation.evaluate import evaluate


async def run_evaluation(
    config: RunConfig, *, base_url: str | None, api_key: str, out: Path | None, as_json: bool
) -> int:
    """Evaluate the workflow of `config` and print the result. Returns the exit code: 1 when every episode failed.

    Args:
        config: with `workflow`, `tasks` and `model.path`.
        base_url: an OpenAI-compatible endpoint, for which `model.path` is a name; None: the model is served here.
        api_key: the endpoint's.
        out: file of JSON lines, one an episode; what it holds already is not run again.
        as_json: print everything as JSON, and no table.

    Raises:
        UsageError: The input cannot be used. Nothing has been started then.
        AgentRLError: The evaluation cannot go on.
    """
    result = await evaluate(config, base_url=base_url, api_key=api_key, out=out)
    if as_json:
        print(json.dumps(result.to_json(), indent=2))
    else:
        show_evaluation(result)
    return 0 if result.failed < len(result.episodes) else 1
