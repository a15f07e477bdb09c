"""Check a run, an evaluation or a service, and that what its tasks need is there, before anything of it is started.

A class of tasks (`task_type.py`) may have a class method `missing`, which is called once with all of a run's tasks:

    @classmethod
    async def missing(cls, tasks: Sequence[Self], config: RunConfig) -> list[str]:
        "Return what the tasks need and cannot have here, each with its remedy, such as a folder, an image, an engine."

What it finds is one error. The tasks of a stream are not known beforehand, so there it is each episode that finds out.
"""

from __future__ import annotations

import inspect
import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from agentrl.config.machine import sized, this_machine
from agentrl.config.run import RunConfig, check_set
from agentrl.config.trainer import LoraConfig
from agentrl.engine.adapters import ADAPTER_CONFIG, role_folders
from agentrl.engine.launch import check_engine
from agentrl.episode import Task
from agentrl.errors import ConfigError, TaskFileError, one_line
from agentrl.models import model_directory
from agentrl.models.check import check_checkpoint
from agentrl.proxy import ChatFormat
from agentrl.rollout.episode_parts import load_backend
from agentrl.rollout.open_runner import chat_format_of
from agentrl.rollout.trained_conversations import load_trajectories
from agentrl.rollout.workers.protocol import unsendable
from agentrl.rollout.workflow import Workflow
from agentrl.system.failure_text import without_secrets
from agentrl.system.imports import check_extra
from agentrl.system.tasks import in_thread, in_users_thread
from agentrl.system.this_process import is_loopback
from agentrl.tasks.task_type import TaskType

ANSWER_TIMEOUT_S = 10.0
"""How long an endpoint may take to answer."""
MAX_REPLY_TOKENS = 4096
"""Default bound of a reply, where a quarter of the context is more: without one a reply may go on to the end of the context."""


async def check_start(config: RunConfig, say: Callable[[str], None], *, training: bool = False) -> RunConfig:
    """Find the model, choose sizes, and check all but the chat format: engine, proxy's address, `sandbox.backend`, `rollout.trajectories`.

    Args:
        config: The configuration.
        say: Takes a line that says what was chosen for this machine.
        training: Whether the model is to be trained.

    Returns:
        The configuration with the model's directory in `model.path`, the roles whose adapters it holds, and what the machine decides.

    Raises:
        ConfigError: One of them cannot be used.
    """
    config = await in_thread(with_model, config, abandon_on_cancel=True)
    config = await in_thread(lambda: with_roles(config, training=training))
    config, chosen = await in_thread(lambda: sized(config, this_machine(), training=training))
    if chosen:
        say(chosen)
    await in_thread(check_engine, config.engine)
    await in_thread(check_address, config.proxy.host, config.proxy.port)
    await load_backend(config.sandbox.backend)
    await in_users_thread(load_trajectories, config.rollout.trajectories)
    return config


async def with_chat_format(config: RunConfig) -> tuple[RunConfig, ChatFormat]:
    """Load the chat format of a model, which takes a second.

    Args:
        config: The configuration, as `check_start` returns it.

    Returns:
        The configuration with a bound of replies, and the chat format.

    Raises:
        ConfigError: It cannot be loaded.
    """
    chat_format = await in_thread(chat_format_of, config, abandon_on_cancel=True)
    bound = config.rollout.max_tokens or min(MAX_REPLY_TOKENS, chat_format.context_length // 4)
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_tokens": bound})}), chat_format


def with_model(config: RunConfig) -> RunConfig:
    """Return the configuration with the directory of its model in `model.path`. Blocks while a model of the hub is downloaded.

    Raises:
        ConfigError: `model.path` is not set, or stands for no whole checkpoint, or what trains it is not installed.
    """
    check_set(config, "model.path")
    path = model_directory(config.model.path)
    check_checkpoint(path)
    if config.trainer.lora is not None:
        check_extra("lora", "`trainer.lora`")
    return config.model_copy(update={"model": config.model.model_copy(update={"path": path})})


def with_roles(config: RunConfig, *, training: bool) -> RunConfig:
    """Return the configuration with the roles whose adapters the model's directory holds: these answer, and no others.

    Args:
        config: The configuration, as `with_model` returns it.
        training: Whether the model is to be trained.

    Raises:
        ConfigError: It is to be trained, which begins with a whole model; or the configuration names other roles.
    """
    path, lora = config.model.path, config.trainer.lora
    held = role_folders(Path(path))
    if not held:
        return config
    names = ", ".join(held)
    if training:
        raise ConfigError(
            f"`model.path` = {path!r} is a checkpoint of a run in which the roles {names} have adapters of their own, and training begins with "
            "one model: go on with that run by `resume`, or begin with the model that it began with"
        )
    if config.trainer.roles and set(config.trainer.roles) != held.keys():
        raise ConfigError(
            f"`model.path` = {path!r} has adapters of the roles {names}, and `trainer.lora.roles` = {config.trainer.roles}; leave "
            "`trainer.lora.roles` out"
        )
    check_extra("lora", f"`model.path` = {path!r}")
    try:
        rank = max(int(json.loads((folder / ADAPTER_CONFIG).read_bytes())["r"]) for folder in held.values())
        trained = LoraConfig(rank=rank, alpha=lora.alpha if lora else 32, roles=list(held))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"`model.path` = {path!r} has adapters that cannot be used: {one_line(error)}") from error
    return config.model_copy(update={"trainer": config.trainer.model_copy(update={"lora": trained})})


def check_address(host: str, port: int) -> None:
    """Check that `proxy.host` and `proxy.port` can be listened on.

    Raises:
        ConfigError: They cannot.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(1)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(
            f"`proxy.host` = {host!r}, `proxy.port` = {port} cannot be listened on: {one_line(error)}; end what listens there, or "
            "choose another port (`proxy.port` = 0: any free one)"
        ) from error


async def check_endpoint(base_url: str, api_key: str) -> None:
    """Check that something answers at an endpoint, and does not refuse the key; what else it answers does not matter.

    Args:
        base_url: Such as http://127.0.0.1:8000/v1.
        api_key: Its key.

    Raises:
        ConfigError: It is no URL, nothing answers there, or the key is refused.
    """
    shown = without_secrets(base_url)
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(f"`base_url` {shown} is no URL; write it with its scheme, as in http://{shown}")
    try:
        async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, trust_env=not is_loopback(base_url)) as client:
            models = base_url.rstrip("/") + "/models"
            response = await client.get(models, headers={"Authorization": f"Bearer {api_key}"})
    except (httpx.TransportError, httpx.InvalidURL, UnicodeError) as error:
        why = one_line(error) or type(error).__name__
        raise ConfigError(
            f"`base_url` {shown} does not answer: {why}; is the server running, and its port right?"
        ) from error
    if response.status_code in (401, 403):
        raise ConfigError(
            f"`base_url` {shown} refuses the key ({response.status_code}); give its own by `api_key` or $OPENAI_API_KEY"
        )


SHOWN = 5
"""Missing things that the error names."""


async def check_tasks(
    config: RunConfig, function: Workflow | None, task_type: TaskType | None, tasks: Sequence[Task]
) -> None:
    """Check that all that tasks need is there, and that they and their workflow can be sent to worker processes, where there are some.

    Args:
        config: The run's.
        function: A workflow that was passed; None: it is loaded from a file.
        task_type: The workflow's class of tasks, which says what they need; None: nothing.
        tasks: The tasks that are known yet. Of a stream, one that cannot be sent fails its episodes.

    Raises:
        ConfigError: The workflow was passed as a function.
        TaskFileError: A task is not JSON, or something is missing; the message names each thing and its remedy.
    """
    if config.rollout.workers and function is not None:
        raise ConfigError(
            "`rollout.workers` runs the workflow in other processes, which load it from a file: name the file with `workflow` in "
            "the configuration instead of passing a function, or set `rollout.workers` = 0"
        )
    for index, task in enumerate(tasks if config.rollout.workers else ()):
        if (fault := unsendable(task, f"task {index}")) is not None:
            raise TaskFileError(fault)
    find: Any = getattr(task_type and task_type.model, "missing", None)
    if task_type is None or not inspect.iscoroutinefunction(find) or not tasks:  # a field may have that name
        return
    validate = task_type.adapter.validate_python
    values = await in_users_thread(lambda: [validate(task) for task in tasks])
    missing: list[str] = await find(values, config)
    if len(missing) == 1:
        raise TaskFileError(missing[0])
    if missing:
        first = f" The first {SHOWN}:" if len(missing) > SHOWN else ""
        shown = "".join(f"\n- {one}" for one in missing[:SHOWN])
        raise TaskFileError(f"{len(missing)} things that the tasks need are missing.{first}{shown}")
