"""The trackers that ship with agentrl. Each imports its package when it is made, in a thread of its own; docs/trackers.md compares them.

    TrackedRun ─► a run of the tracker's, found again by the id ─► log, show, alarm ─► close

A resumed run takes the steps that a crash undid again. TensorBoard then cuts what its curves had of them; the others keep both.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from textwrap import indent
from typing import Any

from agentrl.errors import ConfigError
from agentrl.tracking.tracker import Sample, TrackedRun


class TensorBoard:
    """Writes events into `tensorboard/` of the run's directory."""

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary, self._text = Event, Summary, text_pb
        self._writer = EventFileWriter(str(run.directory / "tensorboard"))
        # From this step on, its readers forget the numbers that an earlier start wrote.
        self._add(run.step + 1, session_log=SessionLog(status=SessionLog.START))
        self._write(max(run.step, 0), "config", json.dumps(run.config, indent=2))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(step, summary=self._summary(value=values))
        self._writer.flush()

    def show(self, step: int, samples: Sequence[Sample]) -> None:
        for number, sample in enumerate(samples):
            title = f"task {sample.task}, reward {sample.reward:g}"
            self._write(step, f"samples/{number}", f"{title}\n\n{sample.transcript}")

    def alarm(self, step: int, text: str) -> None:
        self._write(step, "alarm", text)

    def close(self) -> None:
        self._writer.close()

    def _write(self, step: int, tag: str, text: str) -> None:
        # As a block of code, since it is read as Markdown.
        self._add(step, summary=self._text(tag, indent(text, "    ", lambda line: True)))

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, **content))


class WandB:
    """Logs to Weights & Biases, or with WANDB_MODE=offline into `wandb/` of the run's directory."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False):
            raise ConfigError("W&B knows no key: call `wandb login` first, or set WANDB_MODE=offline")
        self._table = wandb.Table
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "agentrl"),
            name=run.name,
            id=run.id,
            config=run.config,
            dir=str(run.directory),
            resume="allow",
            allow_val_change=True,
            reinit="create_new",  # leaves a run of the workflow's alone
            settings=wandb.Settings(console="off"),
        )
        # W&B's own step only goes up.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step})

    def show(self, step: int, samples: Sequence[Sample]) -> None:
        self._run.log({"step": step, "samples": self._table(list(Sample._fields), [list(row) for row in samples])})

    def alarm(self, step: int, text: str) -> None:
        self._run.alert(f"agentrl, step {step}", text)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """Logs to the server that MLFLOW_TRACKING_URI names."""

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # where commands print results
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric, self._client = Metric, MlflowClient()
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", "agentrl")
        found = self._client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else self._client.create_experiment(project)
        known = self._client.search_runs([experiment], f"tags.agentrl_id = '{run.id}'")
        tags = {"agentrl_id": run.id}
        own = known[0] if known else self._client.create_run(experiment, run_name=run.name, tags=tags)
        self._id = own.info.run_id
        self._client.update_run(self._id, "RUNNING")
        self._client.log_dict(self._id, run.config, "config.json")
        if not known:  # a parameter cannot be changed
            params = [Param(name, str(value)) for name, value in _flat(run.config)]
            for some in range(0, len(params), 100):
                self._client.log_batch(self._id, params=params[some : some + 100])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self._id, [self._metric(name, value, now, step) for name, value in metrics.items()])

    def show(self, step: int, samples: Sequence[Sample]) -> None:
        table = {"columns": Sample._fields, "data": samples}
        self._client.log_dict(self._id, table, f"samples/step-{step:06d}.json")

    def alarm(self, step: int, text: str) -> None:
        self._client.log_text(self._id, text, f"alarms/step-{step:06d}-{time.time():.0f}.txt")

    def close(self) -> None:
        self._client.set_terminated(self._id)


class Trackio:
    """Logs to trackio: into its folder on this machine, or to the Space that TRACKIO_SPACE_ID names."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        # It prints where commands print results; `redirect_stdout` would also take what other threads print.
        for name, module in [*sys.modules.items()]:
            if name.partition(".")[0] == "trackio":
                vars(module)["print"] = partial(print, file=sys.stderr)
        self._table = trackio.Table
        name = f"{run.name}-{run.id[:6]}"  # it finds a run again by its name alone
        project = os.environ.get("TRACKIO_PROJECT", "agentrl")
        self._run = trackio.init(project, name, config=run.config, resume="allow", embed=False)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({name: value for name, value in metrics.items() if name != "step"}, step)  # a name of its own

    def show(self, step: int, samples: Sequence[Sample]) -> None:
        self._run.log({"samples": self._table(columns=list(Sample._fields), data=[list(row) for row in samples])}, step)

    def alarm(self, step: int, text: str) -> None:
        self._run.alert("agentrl", text, step=step)

    def close(self) -> None:
        self._run.finish()


def _flat(content: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested sections by their dotted names."""
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value
