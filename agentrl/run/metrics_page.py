"""`GET /metrics` of the server that agents talk to: how a run or a service does, in the text format of Prometheus.

newest step ─┐
progress ────┼─► agentrl_NAME{run="...", role="..."} VALUE
proxy ───────┘
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.engine.client.reply import ReplyClient
from agentrl.proxy.app import Proxy
from agentrl.proxy.errors import ApiError, map_errors
from agentrl.proxy.http_messages import Body, Handle, Response, has_bearer_key
from agentrl.run.view import RunView
from agentrl.system.this_process import LOOPBACK

PATH = "/metrics"
KIND = "text/plain; version=0.0.4; charset=utf-8"


def metrics_of_run(config: RunConfig, view: RunView, proxy: Proxy) -> Handle:
    """Return what answers the requests to a run's proxy, and `GET /metrics`. With workers, whose proxies have the sessions, it counts theirs."""

    def read() -> Mapping[str, object]:
        values = view.metrics()
        if config.rollout.workers:
            values |= {"sessions_open": values.get("episodes_running"), "generated_tokens": values.get("tokens")}
        return values

    run, key = Path(config.run_dir).name, os.environ.get("AGENTRL_ADMIN_KEY", "")
    return with_metrics(proxy, proxy.handle, run, config.proxy.host, key, read)


def with_metrics(
    proxy: Proxy, handle: Handle, run: str, host: str, key: str, read: Callable[[], Mapping[str, object]] = dict
) -> Handle:
    """Return what answers `GET /metrics`, and hands everything else to `handle`.

    Args:
        proxy: What is measured.
        handle: Answers the other requests.
        run: The value of the label `run`.
        host: The address that is listened on. Off the loopback, `key` is asked for.
        key: The admin key; empty: there is none.
        read: Returns what else there is to know, by name, or better than the proxy knows it. What is no number is left out.
    """

    async def answer(method: str, target: str, headers: Mapping[str, str], body: Body) -> Response:
        if target.partition("?")[0] != PATH or method != "GET":
            return await handle(method, target, headers, body)
        with map_errors(method, PATH) as handled:
            if host not in LOOPBACK:
                check_admin_key(headers, key)
            own = {"sessions_open": len(proxy.sessions), "generated_tokens": proxy.generated_tokens}
            values = {**own, **{f"ignored_{name}_total": count for name, count in proxy.ignored.items()}, **read()}
            if isinstance(proxy.engine, ReplyClient):
                values["engine_requests_in_flight"] = proxy.engine.in_flight
            handled.reply = Response(
                metrics_text(values, run, proxy.adapters).encode(), extra_headers={"Content-Type": KIND}
            )
        return handled.reply

    return answer


def check_admin_key(headers: Mapping[str, str], key: str) -> None:
    """Check that a request has the admin key.

    Raises:
        ApiError: It has not, or there is none.
    """
    if not (key and has_bearer_key(headers, key)):
        message = "This path takes the admin key as bearer: $AGENTRL_ADMIN_KEY, or the key that `agentrl serve` prints."
        raise ApiError(401, message, code="invalid_api_key")


def metrics_text(values: Mapping[str, object], run: str, roles: Sequence[str]) -> str:
    """Return numbers as gauges, NAME_total as a counter. Those of a role, `role_NAME_METRIC`, are METRIC with the label `role`."""
    families: dict[str, list[str]] = {}
    for name, value in values.items():
        if not isinstance(value, int | float):
            continue
        owners = [role for role in roles if name.startswith(f"role_{role}_")]
        labels = {"run": run} | ({"role": max(owners, key=len)} if owners else {})
        metric = name.removeprefix(f"role_{labels['role']}_") if owners else name
        # Strings of JSON are escaped as a label's value is, but for what is not ASCII.
        labels_text = ",".join(f"{label}={json.dumps(text, ensure_ascii=False)}" for label, text in labels.items())
        family = f"agentrl_{re.sub('[^a-zA-Z0-9_]', '_', metric)}"
        kind = "counter" if name.endswith("_total") else "gauge"
        samples = families.setdefault(f"# TYPE {family} {kind}\n", [])
        samples.append(f"{family}{{{labels_text}}} {float(value)}\n")
    return "".join(header + "".join(samples) for header, samples in families.items())
