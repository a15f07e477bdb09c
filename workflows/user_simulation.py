"""An agent serves a user whom a second model plays: tools and rules for the agent, a wish and tools of their own for the user.

A task is {"env": ID} of a `ServiceEnv` (or `FILE.py:CLASS`), with that environment's own keys ("instruction", "database", "actions", ...; without them it draws
one). The user is played by "user": {"base_url": ..., "model": ..., "api_key": ...} in the task, or by the endpoint that
AGENTRL_USER_BASE_URL, AGENTRL_USER_MODEL and AGENTRL_USER_API_KEY name; by lines that are said one after another with "user": [...]; and else
by the model that is trained, in the role "user", which is recorded and not trained on.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import Annotated, Any

import openai
from anyio.to_thread import run_sync as in_thread
from pydantic import BaseModel

from agentrl import Episode
from agentrl.envs.service_env import User
from agentrl.envs.simulated_user import SimulatedUser
from agentrl.errors import EpisodeError
from agentrl.workflows.tool_loop import EnvTask, environment_of


class UserModel(BaseModel):
    """The model that plays the user. What is not given is that of the environment's variables."""

    base_url: str | None = None
    model: str | None = None
    api_key: str | None = None


class ServiceTask(EnvTask):
    """What a line of the task file needs. The environment takes the rest from it."""

    user: UserModel | list[str] = UserModel()


async def run(episode: Episode[Annotated[dict[str, Any], ServiceTask]]) -> float:
    """Return 1 when the database is at the end what the task wants, and the user was told what they had to be, and else 0."""
    task = episode.task
    async with AsyncExitStack() as stack:
        env = episode.env(await environment_of(task["env"]), **task.get("make", {}))
        await env.reset(seed=episode.group_seed, options={**task, "user": await _user(episode, stack)})
        return await env.play(episode)


async def _user(episode: Episode, stack: AsyncExitStack) -> User | list[str]:
    """Return who plays the user: a model, or the lines of one who says nothing else.

    Raises:
        EpisodeError: The task or the environment's variables name half of an endpoint.
    """
    given: dict[str, Any] | list[str] = episode.task.get("user", {})
    if isinstance(given, list):
        return given
    named = {key: given.get(key) or os.environ.get(f"AGENTRL_USER_{key.upper()}") for key in ("base_url", "model")}
    if not any(named.values()):
        role = episode.role("user", trained=False)
        return SimulatedUser(role.client, role.model)
    if not named["base_url"] or not named["model"]:
        raise EpisodeError(
            f"the user's model has base_url = {named['base_url']!r} and model = {named['model']!r}; name both, in the task's 'user' or "
            "as AGENTRL_USER_BASE_URL and AGENTRL_USER_MODEL"
        )
    key = given.get("api_key") or os.environ.get("AGENTRL_USER_API_KEY") or "-"
    # Making a client reads certificates.
    client = await in_thread(lambda: openai.AsyncOpenAI(base_url=named["base_url"], api_key=key))
    return SimulatedUser(await stack.enter_async_context(client), named["model"])
