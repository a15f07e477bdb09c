"""Sizes of a run that the machine decides, where the user did not: engine, precision, concurrency, threads.

facts about the machine ─► values of the keys that are not set ─► one line, and config.json, so that a run which is resumed has the same
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.config.run import RunConfig

REPLIES_PER_GPU = 256
"""Episodes in work at the same time, for each GPU that serves."""
STATIC_MEMORY_SHARE = 0.5
"""Share of a GPU's memory that SGLang holds where the trainer computes on the same GPU."""


@dataclass(frozen=True)
class Machine:
    """Facts about a machine."""

    cores: int
    gpus: int
    sglang: bool
    """Whether SGLang is installed in this environment."""


def this_machine() -> Machine:
    """Return what this process may use of this machine. A torch that was built for the CPU sees no GPU."""
    torch = importlib.metadata.version("torch") if importlib.util.find_spec("torch") else ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = list(Path("/dev").glob("nvidia[0-9]*")) if visible is None else visible.replace("-1", "").split(",")
    count = 0 if torch.endswith("+cpu") else sum(bool(str(gpu)) for gpu in gpus)
    return Machine(len(os.sched_getaffinity(0)), count, importlib.util.find_spec("sglang") is not None)


def sized(config: RunConfig, machine: Machine, *, training: bool) -> tuple[RunConfig, str]:
    """Choose what the user did not set for a machine. A cluster's nodes are not looked at: there nothing is chosen.

    Args:
        config: The configuration.
        machine: Where it is to run.
        training: Whether a trainer runs beside the engine.

    Returns:
        The configuration with every such key set, and a line that says what was chosen; "" where nothing was.
    """
    chosen: dict[str, Any] = {}

    def choose(section: str, **values: object) -> None:
        """Set keys of a section that belong together, unless one of them is set."""
        nonlocal config
        old = getattr(config, section)
        if not values.keys() & old.model_fields_set:
            config = config.model_copy(update={section: old.model_copy(update=values)})
            chosen.update({f"{section}.{name}": value for name, value in values.items()})

    if config.cluster.address:
        return config, ""
    if not config.engine.urls:
        sglang = machine.gpus > 0 and (machine.sglang or bool(config.engine.python))
        choose("engine", kind="sglang" if sglang else "embedded")
    if machine.gpus and config.engine.kind == "sglang" and not config.engine.urls:
        flags = {name.replace("_", "-"): value for name, value in config.engine.flags.items()}
        if not flags.keys() & {"tp", "tp-size", "tensor-parallel-size"}:
            choose("engine", servers=machine.gpus)
        if training and "mem-fraction-static" not in flags:
            added = {**config.engine.flags, "mem-fraction-static": STATIC_MEMORY_SHARE}
            config = config.model_copy(update={"engine": config.engine.model_copy(update={"flags": added})})
            chosen["engine.flags.mem-fraction-static"] = STATIC_MEMORY_SHARE
        startable = config.rollout.batch_size * (config.rollout.max_staleness + 1) if training else REPLIES_PER_GPU
        choose("rollout", max_concurrent=min(REPLIES_PER_GPU * config.engine.servers, startable))
    if training:
        choose("trainer", precision="mixed" if machine.gpus else "float32")
    words = ", ".join(f"{name} = {value}" for name, value in chosen.items())
    return config, f"chosen for this machine ({machine.cores} cores, {machine.gpus} GPUs): {words}" if words else ""


def cpu_threads(config: RunConfig, *, training: bool) -> int:
    """Return the CPU threads of each server that computes on this machine's CPU, and of each rank of the trainer: their share of the cores.

    On a cluster it is 1: its scheduler gives out the cores.
    """
    engine = config.engine
    on_cpu = not engine.urls and (engine.kind == "embedded" or engine.flags.get("device") == "cpu")
    processes = on_cpu * engine.servers + training * config.trainer.ranks
    if config.cluster.address or not processes:
        return 1
    return max(1, (len(os.sched_getaffinity(0)) - 1) // processes)  # one core is the run's own


def gpus_of_server(index: int, servers: int) -> str:
    """Return what CUDA_VISIBLE_DEVICES is for a server, so that all have as many of this machine's GPUs; "" where there are too few."""
    count, visible = this_machine().gpus, os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(gpu) for gpu in range(count)]
    share = count // servers
    return ",".join(devices[index * share : (index + 1) * share])
