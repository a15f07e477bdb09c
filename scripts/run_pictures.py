"""Draw two pictures of a finished run for README.md: its terminal, and its rewards.

python scripts/run_pictures.py runs/quickstart docs/pictures    # writes terminal.svg and reward.svg
"""

from __future__ import annotations

import io
import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from agentrl.cli.terminal import TerminalView
from agentrl.config import RunConfig

TERMINAL_WIDTH = 98
STYLE = """<style>
.card{fill:#ffffff}.line{stroke:#3949ab}.dot{fill:#00796b}text{font:13px system-ui,sans-serif;fill:#222}.dim{fill:#666}.grid{stroke:#d5d5dc}
@media(prefers-color-scheme:dark){.card{fill:#1e1f29}.line{stroke:#9fa8da}.dot{fill:#4db6ac}text{fill:#e8e8ee}.dim{fill:#a5a5b5}.grid{stroke:#3a3b4a}}
</style>"""


def terminal_picture(config: RunConfig, rows: list[dict[str, Any]], command: str) -> str:
    """Return an SVG of what a terminal shows after the last row of a run's metrics."""
    last = rows[-1]
    console = Console(record=True, width=TERMINAL_WIDTH, file=io.StringIO(), force_terminal=True)
    view = TerminalView(config, console)
    view.steps, view.step, view.phase = rows, last["step"], "training"
    view.training_started = time.perf_counter() - (last["wall_s"] - rows[0]["wall_s"] + rows[0]["step_s"])
    counts = {name: last[f"episodes_{name}"] for name in ("running", "finished", "failed")}
    reasons = {name[7:]: count for name, count in last.items() if name.startswith("reason_")}
    progress = SimpleNamespace(
        tokens=last["tokens"], rejected_groups=last["groups_rejected"], reasons=reasons, **counts
    )
    view.controller = SimpleNamespace(  # type: ignore[assignment]
        progress=progress, runner=SimpleNamespace(metrics=dict)
    )
    console.print(f"$ {command}", highlight=False)
    console.print(view)
    drawn = console.export_svg(title=command)
    # The font would be fetched from elsewhere; each reader has one of fixed width.
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL).replace("Fira Code", "ui-monospace")


def reward_picture(rows: list[dict[str, Any]], before: float, after: float) -> str:
    """Return an SVG of the reward of every step, with the held-out rewards before and after."""
    width, height, left, top, right, bottom = 640, 260, 52, 34, 20, 40
    shown = [(row["step"], row["reward_mean"]) for row in rows if row["reward_mean"] is not None]
    low = min(0.0, before, *(reward for _, reward in shown))
    high = max(1.0, after, *(reward for _, reward in shown))
    steps = rows[-1]["step"]

    def at(step: float, reward: float) -> str:
        x = left + (width - left - right) * step / steps
        y = height - bottom - (height - top - bottom) * (reward - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        ' aria-label="Reward by training step">',
        STYLE,
        f'<rect class="card" width="{width}" height="{height}" rx="8"/>',
        f'<text x="{left}" y="21">mean reward of the episodes, by training step</text>',
    ]
    for k in range(5):
        reward = low + (high - low) * k / 4
        (x0, y), (x1, _) = at(0, reward).split(","), at(steps, reward).split(",")
        parts.append(f'<path class="grid" d="M{x0} {y}H{x1}"/>')
        parts.append(f'<text class="dim" x="{left - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{reward:.2f}</text>')
    for k in range(7):
        step = round(steps * k / 6)
        x = at(step, low).split(",")[0]
        parts.append(f'<text class="dim" x="{x}" y="{height - bottom + 20}" text-anchor="middle">{step}</text>')
    points = " ".join(at(step, reward) for step, reward in shown)
    parts.append(f'<polyline class="line" fill="none" stroke-width="2" points="{points}"/>')
    for step, reward, anchor, dx in ((0, before, "start", 10), (steps, after, "end", -4)):
        x, y = at(step, reward).split(",")
        parts.append(f'<circle class="dot" cx="{x}" cy="{y}" r="5"/>')
        parts.append(
            f'<text x="{float(x) + dx:.1f}" y="{float(y) + 30:.1f}" text-anchor="{anchor}">held-out tasks: {reward:.2f}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def main(run_dir: Path, pictures: Path) -> None:
    """Write the pictures of a run."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run_dir / "summary.json").read_text())
    config = RunConfig.model_validate(json.loads((run_dir / "config.json").read_text()) | {"run_dir": str(run_dir)})
    pictures.mkdir(parents=True, exist_ok=True)
    (pictures / "terminal.svg").write_text(terminal_picture(config, rows, f"make {run_dir.name}"))
    (pictures / "reward.svg").write_text(reward_picture(rows, summary["eval_before"], summary["eval_after"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
