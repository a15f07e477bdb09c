"""One run is one `RunConfig`: from Python, from a TOML file, and from dotted overrides on the command line.

Later sources win: defaults < TOML < command line. An unknown key or a wrong value is a ConfigError that names it.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agentrl.errors import ConfigError

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelConfig(_Section):
    """The policy and its chat format."""

    path: str = ""
    """Directory of a Hugging Face checkpoint, or `nano` or `nano_player`, which ship with agentrl; for `eval --base-url`, the
    model name to ask for."""
    renderer: str = "auto"
    """Chat format, a name of the `renderers` library; auto goes by the model."""
    renderer_options: dict[str, Any] = {}
    """Options of the renderer, such as `enable_thinking`."""


class RolloutConfig(_Section):
    """How episodes are made."""

    batch_size: Positive = 64
    """B: episodes in one training batch, a multiple of group_size."""
    group_size: Positive = 8
    """Episodes of one task that are compared with each other."""
    max_staleness: NotNegative = 2
    """η: how many versions behind the trainer an episode may start; 0 is synchronous training."""
    order: Literal["fifo", "window", "greedy"] = "window"
    """Which finished groups a batch takes: the oldest, the oldest within a window, or whatever is finished."""
    window: Positive | None = None
    """W: groups in the window of order = "window". Default: the groups of one batch."""
    max_concurrent: Positive = 64
    """Episodes that run at the same time, at most."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Sampling temperature, where the workflow does not say."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus sampling, where the workflow does not say."""
    max_tokens: Positive | None = None
    """Bound of one reply, where the workflow does not say. Default: what the context leaves."""
    episode_timeout_s: Seconds = 600
    """Bound of one episode."""
    retries: NotNegative = 1
    """How often a failed episode is tried again."""
    max_failed_share: Share = 0.5
    """The run stops when more than this share of its episodes (at least 20) failed for good."""
    drop_uniform_groups: bool = True
    """Drop groups whose rewards are all equal: they teach nothing."""
    keep_calls: bool = True
    """Keep every model call of an unfinished episode in the store as it happens, so that a crash costs no tokens."""

    @model_validator(mode="after")
    def _fits(self) -> RolloutConfig:
        if self.batch_size % self.group_size:
            raise ValueError(
                f"batch_size = {self.batch_size} is not a multiple of group_size = {self.group_size}; "
                f"use {self.batch_size // self.group_size * self.group_size or self.group_size}"
            )
        if self.window is not None and self.order != "window":
            raise ValueError(f'window = {self.window} needs order = "window", not "{self.order}"')
        return self

    @property
    def groups_per_batch(self) -> int:
        """G: groups in one training batch."""
        return self.batch_size // self.group_size


class EngineConfig(_Section):
    """Where tokens come from."""

    kind: Literal["embedded", "sglang"] = "embedded"
    """Which servers are started: the embedded one, or SGLang. `--engine sglang` is short for `--engine.kind sglang`."""
    servers: Positive = 1
    """How many servers are started."""
    urls: list[str] = []
    """Servers that serve the model already and are used instead; trainer and servers then share a file system."""
    python: str = ""
    """Interpreter of the environment that SGLang is installed in. Default: this one."""
    gpus_per_server: NotNegative = 0
    """GPUs that each started SGLang server sees, in order; 0: all servers see all of them."""
    flags: dict[str, bool | int | float | str] = {}
    """Flags of `sglang.launch_server`, passed through: `--engine.flags.mem-fraction-static 0.8`, or `true` for a switch."""
    pause_mode: Literal["retract", "in_place", "abort"] = "retract"
    """How a weight update interrupts replies in flight."""
    transfer: Literal["disk", "broadcast"] = "disk"
    """How weights reach the servers: as files (in shared memory where there is some), or by NCCL or gloo from the trainer."""
    spill: NotNegative = 8
    """A session leaves its server when that has so many more replies in flight than the least busy one."""
    request_timeout_s: Seconds = 600
    """Bound of one reply."""
    hang_timeout_s: Seconds = 30
    """A server that does not answer a health check within this is taken for dead, and started again."""
    health_interval_s: Seconds = 5
    """Time between two health checks of a server."""
    start_timeout_s: Seconds = 300
    """Bound of starting a server."""
    threads: Positive = 1
    """CPU threads of an embedded server, and of an SGLang server with `device = "cpu"`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Number format of an embedded server."""
    max_total_tokens: Positive = 65_536
    """KV cache of an embedded server, in tokens."""

    @model_validator(mode="after")
    def _fits(self) -> EngineConfig:
        if self.flags and (self.kind != "sglang" or self.urls):
            raise ValueError('flags go to SGLang servers that are started: they need kind = "sglang" and no urls')
        if self.transfer == "broadcast" and self.kind == "embedded" and not self.urls:
            raise ValueError('transfer = "broadcast" needs SGLang servers: kind = "sglang", or urls')
        own = {"model-path", "model", "host", "port"} & {name.replace("_", "-") for name in self.flags}
        if own:
            raise ValueError(f"flags.{own.pop()} is set by agentrl; remove it")
        return self


class ProxyConfig(_Section):
    """The server that agents talk to."""

    host: str = "127.0.0.1"
    """Address to listen on. Anyone who reaches it and has a session's key can use the model."""
    port: NotNegative = 0
    """0: a free one."""
    max_request_bytes: Positive = 32 * 2**20
    """A larger request is refused with 413."""
    max_sessions: Positive = 100_000
    """Sessions open at the same time."""
    session_idle_timeout_s: Seconds | None = None
    """A session that no request came for is closed after this. Default: an hour for `agentrl serve`; an episode's session
    lives as long as the episode."""
    write_timeout_s: Seconds = 60
    """A client that reads nothing of its reply for so long is given up."""


class SandboxConfig(_Section):
    """Where model-written code runs. Nothing is started before a workflow asks for it."""

    backend: Literal["auto", "docker", "bubblewrap", "UNSAFE_no_isolation"] = "auto"
    """auto: bubblewrap with the embedded engine, Docker with SGLang, and the other where that does not work."""
    image: str = "agentrl/sandbox"
    """Docker image, where the workflow does not say. The default one is built when it is missing."""
    runtime: str | None = None
    """OCI runtime of Docker, such as `runsc`."""
    boxes: Positive | None = None
    """Boxes that judge at the same time. Default: one a core, and two at least."""
    lent_boxes: Positive | None = None
    """Boxes in the hands of episodes at the same time. Default: rollout.max_concurrent."""
    wait_timeout_s: Seconds = 600
    """Bound of waiting for a box."""


class TrainerConfig(_Section):
    """How the policy learns."""

    lr: Annotated[float, Field(gt=0)] = 1e-5
    """Peak learning rate of AdamW."""
    warmup_steps: NotNegative = 5
    """Optimizer steps over which the learning rate rises from 0."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are clipped to this norm."""
    minibatches: Positive = 1
    """K: optimizer steps a training step."""
    tokens_per_pack: Positive = 4096
    """Tokens of one forward pass; a longer trajectory makes a pack of its own."""
    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline", "gae"] = "grpo"
    """How rewards become advantages; gae: with a critic."""
    gae_discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """γ of advantage = "gae"."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """λ of advantage = "gae"."""
    gae_unit: Literal["token", "turn"] = "token"
    """What a step of the critic is."""
    critic_lr: Annotated[float, Field(gt=0)] = 2e-5
    """Learning rate of the critic."""
    value_clip: Annotated[float, Field(gt=0)] | None = None
    """c: a value that moved by more than this in a step earns nothing by moving further."""
    objective: Literal["ppo", "gspo", "cispo", "sapo", "m2po", "reinforce", "likelihood"] = "ppo"
    """What is maximised: docs/objectives.md."""
    turn_discount: Annotated[float, Field(ge=0, le=1)] | None = None
    """γ: a turn is worth what it and the turns after it earned, each turn later counting γ times as much. Default: a turn is
    worth its own reward, or else its branch's, or else the episode's."""
    truncated_turns: Literal["train", "mask", "penalise"] = "train"
    """What happens to replies that were cut off for their length."""
    failed_turns: Literal["train", "mask", "penalise"] = "train"
    """What happens to replies that the workflow marked as failed."""
    turn_penalty: Annotated[float, Field(ge=0)] = 1.0
    """What is taken off the advantage of a reply that is penalised."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """ε: the ratio is clipped below 1 − ε."""
    clip_high: Annotated[float, Field(gt=0)] = 0.28
    """ε': the ratio is clipped above 1 + ε'."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """c: where the advantage is negative, the objective of "ppo" is never below c times it."""
    tau_positive: Annotated[float, Field(gt=0)] = 1.0
    """τ of "sapo" where the advantage is positive."""
    tau_negative: Annotated[float, Field(gt=0)] = 1.05
    """τ of "sapo" where it is not."""
    proximal: Literal["recompute", "interpolate"] = "recompute"
    """Where log p comes from: a forward pass at the start of the step, or between log b and log θ by the token's age."""
    kl: Literal["none", "loss", "reward"] = "none"
    """Whether the policy is held to the model that it started from: in the loss, or in the reward."""
    kl_coef: Annotated[float, Field(ge=0)] = 0.0
    """β: weight of the KL divergence to the reference."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the divergence is estimated from the sampled tokens: docs/objectives.md."""
    teacher_url: str = ""
    """An SGLang server of another model with the same vocabulary, that the policy is pulled to: on-policy distillation."""
    teacher_coef: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the teacher's advantage, log teacher − log p of each token."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """c: the entropy of every trained token's distribution is rewarded so much."""
    overlong_tokens: Positive | None = None
    """L: an episode whose longest reply has L tokens or more loses 1 of its reward (DAPO's soft punishment)."""
    overlong_margin: Positive | None = None
    """The punishment rises from 0 over the last so many tokens before L."""
    m2_threshold: Annotated[float, Field(gt=0)] = 0.04
    """τ of "m2po": bound of the mean of (log θ/b)²."""
    loss_mean: Literal["token", "sequence", "constant"] = "token"
    """What the loss is a mean over: all tokens, the tokens of each sequence and then sequences, or sequences of a fixed
    length."""
    loss_length: Positive | None = None
    """L: the fixed length of loss_mean = "constant"."""
    weight_cap: Annotated[float, Field(gt=1)] = 5.0
    """Bound of the weight p/b that corrects for stale and mismatched sampling."""
    weight_floor: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Lower bound of the weight, for the masks."""
    weight_mode: Literal["truncate", "mask", "sequence_mask", "geometric_mask", "none"] = "truncate"
    """What happens to a weight outside the bounds: it becomes the bound, its token is left out, or its sequence is; or
    there are no weights."""
    alarm_mismatch: Annotated[float, Field(gt=0)] = 0.02
    """A line warns when the mean |Δlogprob| between engine and trainer is above this: they do not compute the same."""
    alarm_weight: Annotated[float, Field(gt=1)] = 2.0
    """A line warns when p/b of one token in a hundred is above this, or below its inverse: the data is too stale to learn from."""
    mismatch_sequences: NotNegative = 8
    """Trajectories a step on which engine and trainer are compared, under the very weights that sampled them."""
    checkpoint_every: Positive = 10
    """Training steps between checkpoints; the last step always makes one."""
    keep_checkpoints: Positive = 2
    """How many checkpoints stay on disk."""
    ranks: Positive = 1
    """Processes that share the model (FSDP2) and every minibatch, on this machine; with GPUs, one each."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the trainer computes. auto: a GPU, where torch sees one."""
    precision: Literal["float32", "mixed"] = "float32"
    """Number format of the computation; mixed: bfloat16 where torch's autocast says so, over float32 weights."""
    recompute_activations: bool = False
    """Keep one activation a layer, and compute the others again in the backward pass: less memory, a third more time."""
    threads: Positive = 1
    """CPU threads of the trainer."""
    step_timeout_s: Seconds = 3600
    """Bound of one training step."""

    @model_validator(mode="after")
    def _fits(self) -> TrainerConfig:
        if self.dual_clip is not None and self.objective != "ppo":
            raise ValueError(f'dual_clip bounds the objective "ppo"; "{self.objective}" has another form')
        if self.objective == "m2po" and self.weight_mode != "none":
            raise ValueError(
                'objective = "m2po" holds θ against b itself, so a weight p/b would count twice; use weight_mode = "none"'
            )
        if self.objective == "likelihood" and (self.weight_mode != "none" or self.proximal == "interpolate"):
            raise ValueError(
                'objective = "likelihood" has no proximal policy, so weight_mode must be "none" and proximal "recompute"'
            )
        if self.objective == "m2po" and self.proximal == "interpolate":
            raise ValueError('objective = "m2po" has no proximal policy to interpolate; use proximal = "recompute"')
        if self.advantage == "gae" and self.ranks > 1:
            raise ValueError('advantage = "gae" needs ranks = 1: the critic is not spread over ranks')
        if self.advantage == "gae" and self.turn_discount is not None:
            raise ValueError('turn_discount is for advantages from a group; advantage = "gae" has gae_discount')
        if (self.kl == "none") != (self.kl_coef == 0):
            raise ValueError('kl and kl_coef go together: kl = "loss" or "reward" with kl_coef > 0, or neither')
        if self.kl == "loss" and self.kl_estimator == "k1":
            raise ValueError(
                'kl_estimator = "k1" has a gradient of mean 0 in the loss, so it would only add noise; use k2 or k3, or kl = "reward"'
            )
        if (self.overlong_tokens is None) != (self.overlong_margin is None):
            raise ValueError("overlong_tokens and overlong_margin go together: give both or neither")
        if self.overlong_tokens and self.overlong_margin and self.overlong_margin > self.overlong_tokens:
            raise ValueError(
                f"overlong_margin = {self.overlong_margin} is more than overlong_tokens = {self.overlong_tokens}"
            )
        if self.weight_floor and self.weight_mode in ("truncate", "none"):
            raise ValueError(f'weight_floor is for the masks; weight_mode = "{self.weight_mode}" has no lower bound')
        if (self.loss_mean == "constant") != (self.loss_length is not None):
            raise ValueError('loss_length is the length of loss_mean = "constant": give both or neither')
        return self


class DataConfig(_Section):
    """How tasks are gone through."""

    shuffle: bool = True
    """Every epoch in an order of its own, drawn with the seed. A stream comes in its own order."""
    epochs: Positive | None = None
    """The run ends when every task was visited so often, if not by `steps` before. Default: as often as the steps need."""
    eval_share: Share = 0.0
    """Share of the tasks that is held out for evaluation, where eval.tasks names none."""


class EvalConfig(_Section):
    """Evaluation: `agentrl eval`, and before and after training."""

    tasks: str | None = None
    """Task file, or another source of tasks; none given: no evaluation, unless data.eval_share holds some out."""
    limit: Positive | None = None
    """Use the first so many tasks."""
    samples: Positive = 1
    """k: episodes of each task."""
    pass_reward: float = 1.0
    """An episode with at least this reward counts as passed, for pass@k."""
    max_concurrent: Positive = 64
    """Episodes at the same time."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Sampling temperature, where the workflow does not say."""


class RunConfig(_Section):
    """One run, complete."""

    workflow: str = ""
    """Python file with `async def run(episode)`."""
    tasks: str = ""
    """Training tasks: a file of JSON lines, `hf:DATASET[:CONFIG][@SPLIT]`, or `python:FILE_OR_MODULE:NAME`."""
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
    proxy: ProxyConfig = ProxyConfig()
    sandbox: SandboxConfig = SandboxConfig()
    trainer: TrainerConfig = TrainerConfig()
    eval: EvalConfig = EvalConfig()


def load_config(
    files: Path | Sequence[Path] = (), overrides: Mapping[str, str] | None = None, **values: Any
) -> RunConfig:
    """The configuration of the TOML `files` in turn, then `values` (non-empty), then dotted `overrides` such as
    {"trainer.lr": "1e-4"}. Later sources win, key by key.

    An override's text is read as TOML where it is TOML ("1e-4", "[1, 2]", "true") and as a string otherwise.
    Raises ConfigError.
    """
    content: dict[str, Any] = {}
    for file in [files] if isinstance(files, Path) else files:
        try:
            _merge(content, tomllib.loads(file.read_text()))
        except OSError as error:
            raise ConfigError(f"cannot read the configuration {file}: {error.strerror}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{file} is not TOML: {error}") from error
    content.update({name: value for name, value in values.items() if value not in (None, "")})
    for dotted, text in (overrides or {}).items():
        *parents, name = dotted.split(".")
        section = content
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise ConfigError(f"--{dotted}: {parent!r} is a value, not a section")
        section[name] = _value(text)
    try:
        return RunConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError("; ".join(_complaints(error))) from None


def config_keys(section: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[str]:
    """Every dotted key, such as `rollout.batch_size`."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from config_keys(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def _merge(content: dict[str, Any], later: dict[str, Any]) -> None:
    for name, value in later.items():
        if isinstance(value, dict) and isinstance(content.get(name), dict):
            _merge(content[name], value)
        else:
            content[name] = value


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _complaints(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        key = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            close = difflib.get_close_matches(key, list(config_keys()), n=1)
            yield f"unknown configuration key {key!r}" + (f"; did you mean {close[0]!r}?" if close else "")
        else:
            message = problem["msg"].removeprefix("Value error, ")
            shown = json.dumps(problem["input"], default=str)
            yield f"{key}: {message}" if problem["type"] == "value_error" else f"{key} = {shown}: {message}"
