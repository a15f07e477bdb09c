"""Every error a user can meet. Each message says what happened, to which value, and what to do about it.

A key of the configuration, or an argument, that a message tells to change is in backquotes: `trainer.optimizer.lr` is
`--trainer.optimizer.lr` on the command line.

    AgentRLError
    ├── UsageError            bad input, found before any work starts; the command line exits with code 2
    │   ├── ConfigError       a field of the run configuration
    │   ├── WorkflowError     the workflow file
    │   ├── TaskFileError     the task file, with its line number
    │   └── StoreError        the run directory cannot be used as asked
    │       └── CheckpointError   a checkpoint is damaged
    ├── EngineError           an inference server refused, failed or went silent
    ├── EpisodeError          one episode failed; it is recorded and the run goes on
    │   ├── EpisodeTimeoutError
    │   ├── NoModelCallError
    │   ├── BadRewardError
    │   └── RewardFunctionError   one function of a rubric failed
    ├── CheckFailedError      a check of `agentrl.testing` found something wrong
    ├── ToolDefinitionError   a tool, or a wrapper around a tool environment, that cannot work
    ├── ToolCallError         a model's tool call that cannot be carried out; the model is told, nothing ends
    ├── SandboxError          a sandbox could not be had, or was lost with what ran in it
    │   └── SandboxLostError
    ├── TooManySessionsError  the proxy has as many sessions open as it may
    ├── TrainerError          the trainer process failed
    │   ├── TrainerDiskError  the disk did not take what it was to write
    │   └── TrainerLostError  it died, or went silent
    │       └── TrainerStateError     a step failed in its middle, or it holds other steps than it should
    ├── WorkerError           a worker process cannot be started
    │   └── WorkerLostError   it died, or its event loop was blocked; its episodes go on elsewhere
    ├── CheckpointUrlError    the URL of checkpoints does not answer, or not as it should
    ├── ClusterError          a node of the cluster did not do what was asked
    │   └── NodeLostError     the node, or what was started there, is gone
    ├── DiskError             the run directory does not take what is to be written
    └── TooManyFailuresError  more episodes failed than the run allows

All of them pickle, so that they cross process boundaries unchanged.
"""

MAX_LINE = 400
"""Characters of foreign text that a message quotes at most."""


def one_line(text: object, limit: int = MAX_LINE) -> str:
    """Return the text of something foreign so that a line can quote it: printable, without line breaks, bounded.

    It never raises, not even for an object whose `__str__` does.
    """
    try:
        shown = text if isinstance(text, str) else str(text)
    except Exception:
        shown = f"a {type(text).__name__} that cannot be shown"
    # Bounded first: what is foreign may be huge.
    words = " ".join(shown[: 4 * limit].split())
    clean = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in words)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def error_line(error: str) -> str:
    """Return the line of a text with a traceback, such as a log, that says what was raised last; without one, its last line."""
    _, traced, last = error.rpartition("Traceback (most recent call last):\n")
    said = [line for line in last.splitlines() if line.strip()] or [""]
    return one_line(next((line for line in said if traced and not line.startswith(" ")), said[-1]))


def unwritten(what: str, reason: object, run_dir: object) -> str:
    """Return the message of a `DiskError` in a run, an evaluation or a service that has begun."""
    return (
        f"{what} cannot be written: {reason}. What was committed is safe: make room, or repair the disk, and go on with "
        f"--resume {run_dir} (in Python, resume=True), or with it as the `out` of an evaluation or a service"
    )


class AgentRLError(Exception):
    """Root of all errors that agentrl raises on purpose."""


class UsageError(AgentRLError):
    """The input cannot be used. Raised before work starts."""


class ConfigError(UsageError):
    """A field of the run configuration is unknown, malformed, or contradicts another."""


class WorkflowError(UsageError):
    """The workflow file cannot be loaded, or has no `async def run(episode)`."""


class TaskFileError(UsageError):
    """The task file cannot be read, or one of its lines is not a JSON object."""


class EngineError(AgentRLError):
    """An inference server refused a request, failed, or did not answer within its bound."""


class EpisodeError(AgentRLError):
    """One episode failed. The run goes on."""


class EpisodeTimeoutError(EpisodeError):
    """The workflow ran longer than `rollout.episode_timeout_s`."""


class NoModelCallError(EpisodeError):
    """The workflow returned without calling the model, so there is nothing to learn from."""


class BadRewardError(EpisodeError):
    """The workflow returned something that is not a finite number or a `Reward`."""


class RewardFunctionError(EpisodeError):
    """A function of a rubric raised, or returned something that is not a finite number. The message names the function."""


class CheckFailedError(AgentRLError):
    """A check of `agentrl.testing` found something wrong. The message says what, and what to do about it."""


class ToolDefinitionError(AgentRLError):
    """A tool lacks a type, or a wrapper around a tool environment does what it cannot."""


class ToolCallError(AgentRLError):
    """A model called a tool in a way that cannot be carried out. Its text is for the model."""


class SandboxError(AgentRLError):
    """A sandbox could not be started, or refused a request. What a program does in it is never an error, but a result."""


class SandboxLostError(SandboxError):
    """A sandbox went away while it was in use: its engine stopped, or what ran in it took it down."""


class StoreError(UsageError):
    """The run directory cannot be used as asked."""


class CheckpointError(StoreError):
    """A checkpoint is damaged, or not of this agentrl. The message names the file."""


class TooManySessionsError(AgentRLError):
    """The proxy has as many sessions open as there may be."""


class TrainerError(AgentRLError):
    """The trainer process failed."""


class TrainerDiskError(TrainerError):
    """The disk did not take what the trainer was to write."""


class TrainerLostError(TrainerError):
    """The trainer process died or went silent."""


class TrainerStateError(TrainerLostError):
    """The trainer's state is not the one that its run knows of: only a new process, from a checkpoint, goes on."""


class WorkerError(AgentRLError):
    """A worker process cannot be started."""


class WorkerLostError(WorkerError):
    """A worker process died, or its event loop was blocked. Its episodes go on elsewhere."""


class CheckpointUrlError(AgentRLError):
    """The URL where checkpoints are kept does not take, give or delete one."""


class ClusterError(AgentRLError):
    """A node of the cluster did not do what was asked."""


class NodeLostError(ClusterError):
    """A node of the cluster, or what was started there, is gone."""


class DiskError(AgentRLError):
    """The run directory does not take what is to be written: the disk is full, or broken. What was committed is safe."""


class TooManyFailuresError(AgentRLError):
    """A larger share of episodes failed than `rollout.max_failed_share` allows."""
