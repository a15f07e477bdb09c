"""A line warns when a run is not healthy, and says what to do."""

from __future__ import annotations

from agentrl.alarms import alarms
from agentrl.config import RunConfig

HEALTHY = {"logprob_mismatch_mean_abs": 1e-4, "weight_p01": 0.8, "weight_p99": 1.3, "staleness_max": 3.0}


def test_a_healthy_step_says_nothing() -> None:
    assert list(alarms(HEALTHY, RunConfig(), 3)) == []
    assert list(alarms({}, RunConfig(), None)) == []


def test_each_drift_has_its_line() -> None:
    drifts = {
        "logprob_mismatch_mean_abs": (0.05, "engine and trainer differ by 0.05 in mean |Δlogprob|"),
        "weight_p99": (2.5, "p/b is 0.80 to 2.50 for 98 % of the tokens"),
        "weight_p01": (0.3, "p/b is 0.30 to 1.30 for 98 % of the tokens"),
        "staleness_max": (4.0, "a token is 4 versions old, and the bound is 3"),
    }
    for name, (value, line) in drifts.items():
        (said,) = alarms({**HEALTHY, name: value}, RunConfig(), 3)
        assert said.startswith(line)
