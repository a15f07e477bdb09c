"""One run is one `RunConfig`, complete: what it holds, and which keys do not go together."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from agentrl.config.data import DataConfig
from agentrl.config.section import NotNegative, Positive, Seconds, Section, Share, problem_text
from agentrl.config.trainer import GroupAdvantage, TrainerConfig
from agentrl.errors import ConfigError, UsageError, one_line


class ModelConfig(Section):
    """The policy and its chat format."""

    short_key: ClassVar[str] = "path"
    path: str = ""
    """Directory of a Hugging Face checkpoint, the id of a model of the hub (`Qwen/Qwen3-0.6B`), or `nano` or `nano_player`, which ship
    with agentrl; for `eval --base-url`, the model name to ask for. `model = "nano"` is short for it."""
    renderer: str = "auto"
    """Chat format, a name of the `renderers` library; auto goes by the model, and takes its chat template where that differs."""
    renderer_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the renderer, such as `enable_thinking`."""


class RolloutConfig(Section):
    """How episodes are made."""

    batch_size: Positive = 64
    """B: episodes in one training batch, a multiple of group_size."""
    group_size: Positive = 8
    """Episodes of one task that are compared with each other."""
    max_staleness: NotNegative = 2
    """η: how many versions behind the trainer an episode may start; 0 is synchronous training."""
    window: Positive | None = None
    """W: a batch takes finished groups among the W oldest; 1: in the order in which they started. Default: the groups of one batch."""
    max_concurrent: Positive = 64
    """Episodes that run at the same time, at most. Not set: more with SGLang on GPUs."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Sampling temperature, where the workflow does not say."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling, where the workflow does not say. Below 1, replies are not the policy's own: see
    `trainer.turns.altered_sampling`."""
    max_tokens: Positive | None = None
    """Bound of one reply, where the workflow does not say. Default: a quarter of the model's context, 4096 tokens at most."""
    episode_timeout_s: Seconds = 600
    """Bound of one episode, without the time in which no server is in service."""
    retries: NotNegative = 1
    """How often a failed episode is tried again."""
    max_failed_share: Share = 0.5
    """The run stops when more than this share of its episodes (at least 20) failed for good."""
    trajectories: str = "main"
    """Which conversations of an episode are trained on. main: those of the main agent, without titles, side questions and
    sub-agents; all; or FILE_OR_MODULE:NAME of a function that says it of each (docs/token-record.md). A workflow may set `episode.trajectories`."""
    drop_uniform_groups: bool = True
    """Drop groups whose rewards are all equal: they teach nothing. After 20 batches' worth in a row they are trained on too, until a group's
    rewards differ, so that the run can end."""
    workers: NotNegative = 0
    """Processes that run the workflows; 0: they run in the main process, where a breakpoint works. On a cluster at least 1."""

    @model_validator(mode="after")
    def _check_keys_together(self) -> RolloutConfig:
        if self.batch_size % self.group_size:
            below = self.batch_size - self.batch_size % self.group_size
            use = " or ".join(str(size) for size in (below, below + self.group_size) if size)
            raise ValueError(
                f"batch_size = {self.batch_size} is not a multiple of group_size = {self.group_size}; use {use}"
            )
        if self.trajectories not in ("main", "all") and not all(self.trajectories.rpartition(":")):
            raise ValueError(
                f'trajectories = "{self.trajectories}" is none of "main", "all" and FILE_OR_MODULE:NAME of a function; use one'
            )
        return self

    @property
    def groups_per_batch(self) -> int:
        """G: groups in one training batch."""
        return self.batch_size // self.group_size


class EngineConfig(Section):
    """Where tokens come from."""

    kind: Literal["embedded", "sglang"] = "embedded"
    """Which servers are started: the embedded one, or SGLang. Not set: SGLang where it and a GPU are. `--engine sglang` is short for it."""
    servers: Positive = 1
    """How many servers are started, which share this machine's GPUs evenly. Not set: of SGLang, one a GPU."""
    urls: list[str] = Field(default_factory=list)
    """Servers that serve the model already and are used instead; trainer and servers then share a file system."""
    python: str = ""
    """Interpreter of the environment that SGLang is installed in. Default: this one."""
    flags: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Flags of `sglang.launch_server`, passed through: `--engine.flags.mem-fraction-static 0.8`, or `true` for a switch. The embedded
    server has `max-total-tokens`, its KV cache (65,536 tokens)."""
    pause_mode: Literal["retract", "in_place", "abort"] = "retract"
    """How a weight update interrupts replies in flight."""
    transfer: Literal["disk", "broadcast"] = "disk"
    """How weights reach the servers: as files (in shared memory where there is some), or by NCCL or gloo from the trainer."""

    @model_validator(mode="after")
    def _check_keys_together(self) -> EngineConfig:
        if self.flags and self.urls:
            raise ValueError("flags go to servers that are started, and urls names others; leave one of them out")
        if self.transfer == "broadcast" and self.kind == "embedded" and not self.urls:
            raise ValueError('transfer = "broadcast" needs SGLang servers: kind = "sglang", or urls')
        own = {"model-path", "model", "host", "port"} & {name.replace("_", "-") for name in self.flags}
        if own:
            raise ValueError(f"flags.{own.pop()} is set by agentrl; remove it")
        return self


class ClusterConfig(Section):
    """Workers, servers and the trainer's ranks on the nodes of a Ray cluster."""

    address: str = ""
    """"": this machine alone, without Ray; local: a Ray that is started here; auto or HOST:PORT: a cluster that runs."""
    worker: dict[str, Any] = Field(default_factory=dict)
    """Ray's options of a rollout worker: num_cpus (1), num_gpus, resources, label_selector: `--cluster.worker.num_cpus 2`."""
    server: dict[str, Any] = Field(default_factory=dict)
    """Ray's options of an engine server: `--cluster.server.num_gpus 1`."""
    rank: dict[str, Any] = Field(default_factory=dict)
    """Ray's options of a rank of the trainer. Default: ranks are no actors, they run where the run is started."""


class ProxyConfig(Section):
    """The server that agents talk to."""

    host: str = "127.0.0.1"
    """Address to listen on. Anyone who reaches it and has a session's key can use the model."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0: a free one. With `rollout.workers` it is the port of `/metrics` alone, and 0 means no `/metrics`."""


class SandboxConfig(Section):
    """Where model-written code runs. Nothing is started before a workflow asks for it."""

    backend: str = "auto"
    """auto, docker, bubblewrap, UNSAFE_no_isolation, one of an installed package, or python:FILE_OR_MODULE:FACTORY. auto: bubblewrap
    with the embedded engine, Docker with SGLang, and the other where that does not work."""
    image: str = "agentrl/sandbox"
    """Docker image, where the workflow does not say. The default one is built when it is missing."""
    memory_mb: Positive = 512
    """Memory of a sandbox. A test's own limit may be less, never more."""


class EvalConfig(Section):
    """Evaluation: `agentrl eval`, and before, while and after a run trains."""

    tasks: str | None = None
    """Task file, or another source of tasks. None given: those that data.eval_share holds out; else a run evaluates nothing, and
    `agentrl eval` evaluates `tasks`."""
    limit: Positive | None = None
    """Use the first so many tasks."""
    every: Positive | None = None
    """Training steps from one evaluation to the next, for which training waits. Not set: before and after training alone."""
    stop_at: float | None = None
    """Mean reward at which the run ends, where an evaluation reaches it: `--eval.every 5 --eval.stop-at 0.9`."""
    samples: Positive = 1
    """k: episodes of each task."""
    pass_reward: float = 1.0
    """An episode with at least this reward counts as passed, for pass@k."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Sampling temperature, where the workflow does not say."""


class TrackingConfig(Section):
    """Trackers that a run, or an evaluation, is shown in."""

    trackers: list[str] = Field(default_factory=list)
    """Any of tensorboard, wandb, mlflow and trackio, and FILE_OR_MODULE:NAME of classes of your own (docs/trackers.md)."""


class RunConfig(Section):
    """The whole configuration of a run. A key that is unknown, or a value that is wrong, is a ConfigError."""

    workflow: str = ""
    """Python file with `async def run(episode)`."""
    tasks: str = ""
    """Training tasks: a file of JSON lines, `hf:DATASET[:CONFIG][@SPLIT]`, `harbor:DIR[@AGENT]`,
    `swe:ROWS[@AGENT]`, `verifiers:ENV[?ARGS]`, or `python:FILE_OR_MODULE:NAME`."""
    run_dir: str = ""
    """Where the run keeps its store, checkpoints and metrics. Default: runs/ and the time."""
    steps: Positive = 100
    """Training steps."""
    seed: int = 0
    """Seed of the run: task order and episode seeds."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()
    cluster: ClusterConfig = ClusterConfig()
    proxy: ProxyConfig = ProxyConfig()
    sandbox: SandboxConfig = SandboxConfig()
    trainer: TrainerConfig = TrainerConfig()
    eval: EvalConfig = EvalConfig()
    tracking: TrackingConfig = TrackingConfig()

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError("; ".join(problem_text(one, RunConfig)[1] for one in error.errors())) from None

    # pydantic's own way to say that `model_validate` need not come through here.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="after")
    def _check_keys_together(self) -> RunConfig:
        if self.engine.transfer == "broadcast" and (self.trainer.lora or self.cluster.address):
            raise ValueError(
                '`engine.transfer` = "broadcast" sends neither the adapter of `trainer.lora` nor weights to the nodes of a cluster; use "disk"'
            )
        if self.tasks and self.data.sources:
            raise ValueError(f"`tasks` = {self.tasks} and `data.sources` both name tasks; leave one of them out")
        return self


def check_training(config: RunConfig) -> None:
    """Check what a training run alone needs: episodes that are compared with others, and replies that are the policy's own.

    Raises:
        ConfigError: Every advantage would be 0, or every reply would be masked.
    """
    rollout, trainer = config.rollout, config.trainer
    held_out = config.eval.tasks or config.data.eval_share
    for key in ("every", "stop_at"):
        if getattr(config.eval, key) and not held_out:
            raise ConfigError(
                f"`eval.{key}` needs held-out tasks: set `eval.tasks` or `data.eval_share`, or leave it out"
            )
    if config.eval.stop_at is not None and not config.eval.every:
        raise ConfigError(
            f"`eval.stop_at` = {config.eval.stop_at:g} ends a run by an evaluation, and `eval.every` is not set: "
            "`eval.every` = 5 evaluates every fifth step"
        )
    compared = trainer.advantage.kind in ("grpo", "dr_grpo", "reinforce_pp_baseline")
    discounted = isinstance(trainer.advantage, GroupAdvantage) and trainer.advantage.discount
    if rollout.group_size == 1 and compared and not (trainer.teacher or discounted):
        raise ConfigError(
            f'`rollout.group_size` = 1 leaves `trainer.advantage` = "{trainer.advantage.kind}" nothing to compare an episode with: '
            'every advantage would be 0. Use `rollout.group_size` = 2 or more, or `trainer.advantage` = "gae", "reinforce_pp" or "rloo"'
        )
    if rollout.top_p < 1 and trainer.turns.altered_sampling == "mask":
        raise ConfigError(
            f"`rollout.top_p` = {rollout.top_p:g} draws every reply from a part of the policy's distribution, and "
            '`trainer.turns.altered_sampling` = "mask" leaves such replies out: nothing would be trained on. Use `rollout.top_p` = 1, or "train"'
        )


def check_is_config(config: object, call: str) -> None:
    """Check that what was given to `call` as its configuration is one.

    Raises:
        UsageError: It is something else.
    """
    if not isinstance(config, RunConfig):
        raise UsageError(
            f"{call} takes an agentrl.RunConfig, and not {one_line(repr(config), 100)} of type {type(config).__name__}: build one, as in "
            'agentrl.RunConfig(model="nano"), or read a file, as in agentrl.config.load_config(Path("run.toml"))'
        )


def check_set(config: RunConfig, *keys: str) -> None:
    """Check that the configuration has a value for some keys that have no default. `data.sources` stands for `tasks`.

    Args:
        config: The configuration.
        keys: Dotted names.

    Raises:
        ConfigError: A key has no value.
    """
    for key in keys:
        if key == "tasks" and config.data.sources:
            continue
        section, _, name = key.rpartition(".")
        if not getattr(getattr(config, section) if section else config, name):
            raise ConfigError(f"`{key}` is not set; give it, or set it in a file of the configuration")


def on_cluster(config: RunConfig) -> RunConfig:
    """Return the configuration with a worker at least, where there is a cluster."""
    if not config.cluster.address or config.rollout.workers:
        return config
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"workers": 1})})


def config_text(config: RunConfig) -> str:
    """Return what config.json holds: all but where the run lies, so that a run which is copied or moved is the one in its new place."""
    return config.model_dump_json(indent=2, exclude={"run_dir"}) + "\n"
