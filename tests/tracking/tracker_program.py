"""A run that is killed at step 5 and goes on after step 3, as one of the trackers sees it; then that tracker's own reader prints what it has.

    python tests/tracking/tracker_program.py NAME CONFIG

It is run in the environment of the trackers, which has nothing else of what agentrl needs.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio

from agentrl.config import RunConfig, load_config
from agentrl.tracking.tracker import load_trackers, open_tracking

HOSTILE = "<script>alert(1)</script>\n\x1b[31m| a | \N{REPLACEMENT CHARACTER}"


def episodes() -> list[Any]:
    values: dict[str, Any] = {"reason": "finished", "transcript": lambda: HOSTILE}
    return [SimpleNamespace(task=task, reward=float(task), **values) for task in range(3)]


async def run(config: RunConfig) -> None:
    trackers, run_dir = load_trackers(config.tracking.trackers), Path(config.run_dir)

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    for after, last in ((0, 5), (3, 6)):
        async with open_tracking(trackers, config, run_dir, after, say) as tracking:
            for step in range(after + 1, last + 1):
                tracking.log(step, {"step": step, "reward_mean": after + step / 8})
            tracking.show(last, episodes)
            tracking.alarm(f"ALARM, step {last}")


def of_wandb(run_dir: Path) -> dict[str, Any]:
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # ends its writer, as the end of a process does

    def records(data: bytes) -> Iterator[Record]:
        """The blocks of LevelDB's log, in which W&B keeps its records: it has no reader of them for Python any more."""
        at, body = 7, b""
        while at + 7 <= len(data):
            room = 32768 - at % 32768
            if room < 7:
                at += room
                continue
            _, size, kind = struct.unpack_from("<IHB", data, at)
            body += data[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):
                yield Record.FromString(body)
                body = b""

    found: dict[str, Any] = {"curve": [], "alarms": [], "ids": []}
    for file in sorted(run_dir.glob("wandb/offline-run-*/*.wandb")):
        for record in records(file.read_bytes()):
            if record.HasField("run"):
                found["ids"].append(record.run.run_id)
                updates = {item.key: item.value_json for item in record.run.config.update}
                found["model"] = json.loads(updates["model"])["path"]
            if record.HasField("alert"):
                found["alarms"].append(record.alert.text)
            if record.HasField("history"):
                row = {
                    ".".join([item.key, *item.nested_key]).strip("."): item.value_json for item in record.history.item
                }
                if "reward_mean" in row:
                    found["curve"].append([int(row["step"]), float(row["reward_mean"])])
    tables = sorted(
        run_dir.glob("wandb/offline-run-*/files/media/table/*.json"), key=lambda file: file.stat().st_mtime_ns
    )
    found["samples"] = [json.loads(file.read_text())["data"] for file in tables]
    return found


def of_mlflow(run_dir: Path) -> dict[str, Any]:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("agentrl")
    runs = client.search_runs([experiment.experiment_id])
    own = runs[0].info.run_id

    def artifacts(folder: str) -> list[str]:
        paths = sorted(one.path for one in client.list_artifacts(own, folder))
        return [Path(client.download_artifacts(own, path, str(run_dir))).read_text() for path in paths]

    return {
        "curve": [[one.step, one.value] for one in client.get_metric_history(own, "reward_mean")],
        "model": runs[0].data.params["model.path"],
        "alarms": artifacts("alarms"),
        "samples": [json.loads(text)["data"] for text in artifacts("samples")],
        "ids": [one.info.run_id for one in runs],
        "status": runs[0].info.status,
    }


def of_trackio(run_dir: Path) -> dict[str, Any]:
    from trackio import Api
    from trackio.sqlite_storage import SQLiteStorage

    (own,) = Api().runs("agentrl")
    rows = SQLiteStorage.get_logs("agentrl", own.name)
    tables = [row["samples"]["_value"] for row in rows if "samples" in row]
    assert own.config is not None
    return {
        "curve": [[row["step"], row["reward_mean"]] for row in rows if "reward_mean" in row],
        "model": own.config["model"]["path"],
        "alarms": sorted(alert["text"] for alert in own.alerts()),
        "samples": [[list(row.values()) for row in table] for table in tables],
        "ids": [own.name],
    }


def main(name: str, file: str) -> None:
    config = load_config(Path(file), {}, tracking={"trackers": [name]})
    anyio.run(run, config)
    reader = {"wandb": of_wandb, "mlflow": of_mlflow, "trackio": of_trackio}[name]
    print(json.dumps(reader(Path(config.run_dir))))


if __name__ == "__main__":
    main(*sys.argv[1:])
