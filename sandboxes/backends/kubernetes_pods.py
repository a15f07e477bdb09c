"""Sandboxes that are pods of a Kubernetes cluster, made and reached through its API server alone.

The pod's first process reads from the stream that made it (`stdinOnce`): when this process dies, in whatever way, the pod's input ends,
and so does the pod. It has no rights at all, so that it can make no namespaces: the pod is the fence, for all of its users.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import anyio

from agentrl.concurrency.threads import in_thread
from agentrl.errors import SandboxError, one_line
from agentrl.sandboxes.backends.kubernetes_api import Api, ApiError, open_api
from agentrl.sandboxes.backends.kubernetes_objects import CONTAINER, LABEL, OWNER, USERS, network_policy, pod
from agentrl.sandboxes.backends.owner import is_dead, owner
from agentrl.sandboxes.backends.streams import StreamLink, open_streams
from agentrl.sandboxes.seams import DEFAULT_IMAGE, SandboxSpec

LOOK_S = 0.2
HOPELESS = (
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
"""Reasons for which a container waits and will go on to wait. ErrImagePull is none: the first try may have met a registry that was busy."""
_in_use: set[str] = set()
"""The names of this process's pods that a sandbox has; any other of this process is left over."""


@dataclass(frozen=True)
class Kubernetes:
    """The backend on a Kubernetes cluster. Needs `agentrl[kubernetes]`.

    NOT TRIED ON A REAL CLUSTER WITH A NETWORK PLUG-IN: docs/sandboxes.md says what it was tried on.
    """

    context: str | None = None
    """Of the configuration that `kubectl` reads. Default: the current one; in a pod, its service account."""
    namespace: str | None = None
    """Default: the context's."""
    start_timeout_s: float = 300.0
    """Bound of a pod's start, with what the cluster does for it: a new node, the image."""
    deadline_s: int = 86_400
    """After so long the cluster ends a pod, whatever became of this process."""
    pod_spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every pod's `spec` beside agentrl's, such as `nodeSelector`, `tolerations`, `imagePullSecrets`."""

    name = "kubernetes"
    isolates: ClassVar = {
        "files": "the image's, read-only; /sandbox, /tmp and /dev/shm in memory, bounded; emptied for each user",
        "processes": "the pod's namespace; the number by RLIMIT_NPROC; all are killed after each run",
        "network": "a NetworkPolicy, which the cluster's network plug-in must enforce, unless network = true",
        "memory": "the pod's limit; looked at every 10 ms besides",
        "cpu": "the pod's limit; CPU seconds looked at every 10 ms, and RLIMIT_CPU",
        "privileges": "an unprivileged user, another for each pod; no capabilities, no-new-privileges",
        "system calls": "the runtime's default filter and agentrl's",
    }

    async def holes(self) -> list[str]:
        """Return what a program can do here that it should not, in sentences."""
        return [
            "whether the network is shut is the cluster's: a NetworkPolicy does nothing without a plug-in that enforces it, and "
            "nothing in the API says so (`agentrl doctor --backend kubernetes` tries)",
            "the users of one pod follow one another in the same namespaces: what is no file and no process, such as the "
            "kernel's counters, is not made new",
            "a program that kills the first process of its pod, which is of the same user, takes its own sandbox down",
            "the number of files in a folder is bounded by its size alone, and sizes only by eviction before Kubernetes 1.32",
        ]

    async def prepare(self, spec: SandboxSpec) -> None:
        """Look whether pods can be made, make the policy of the network, and remove pods that nobody uses any more.

        Raises:
            SandboxError: The cluster does not answer or refuses, or `spec` asks for what it cannot do.
        """
        if spec.folders:
            raise SandboxError(
                f"folders shows {spec.folders[0][1]!r} of this machine, which the nodes of a cluster do not have"
            )
        async with open_api(self.context, self.namespace) as api:
            await remove_left_over(api)
            if not spec.network:
                with suppress_code(409):
                    await api.call("POST", _policies(api), network_policy())
            trial = await in_thread(self._pod, f"agentrl-trial-{secrets.token_hex(4)}", spec)
            await api.call("POST", _pods(api), trial, dryRun="All")

    @asynccontextmanager
    async def start(self, spec: SandboxSpec, core: int | None = None) -> AsyncIterator[StreamLink]:
        """Yield a new pod.

        Raises:
            SandboxError: It does not start; it says what the cluster says.
        """
        name = f"agentrl-{secrets.token_hex(6)}"
        _in_use.add(name)
        try:
            async with open_api(self.context, self.namespace) as api:
                await api.call("POST", _pods(api), await in_thread(self._pod, name, spec))
                await self._until_running(api, name, spec)
                async with api.attach(api.access.namespace, name, CONTAINER) as streams:
                    yield await open_streams(streams, spec, isolated=False)
        finally:
            _in_use.discard(name)
            # What cannot be removed now is found by its label at the next start.
            with anyio.CancelScope(shield=True), suppress(SandboxError):
                async with open_api(self.context, self.namespace) as api:
                    await _remove(api, name)

    def _pod(self, name: str, spec: SandboxSpec) -> dict[str, Any]:
        uid = USERS[0] + secrets.randbelow(USERS[1] - USERS[0])
        return pod(name, spec, uid=uid, owner=owner(), deadline_s=self.deadline_s, overrides=dict(self.pod_spec))

    async def _until_running(self, api: Api, name: str, spec: SandboxSpec) -> None:
        wait_s, why = LOOK_S, "it says nothing"
        with anyio.move_on_after(self.start_timeout_s):
            while True:
                status = (await api.call("GET", f"{_pods(api)}/{name}")).get("status") or {}
                if status.get("phase") == "Running":
                    return
                hopeless, why = _waits_for(status, why)
                if hopeless or status.get("phase") in ("Failed", "Succeeded"):
                    raise SandboxError(f"the pod {name} does not start: {why}{_image_remedy(why, spec.image)}")
                await anyio.sleep(wait_s)
                wait_s = min(1.5 * wait_s, 2.0)
        raise SandboxError(
            f"the pod {name} did not start within {self.start_timeout_s:g} s: {why}{_image_remedy(why, spec.image)}"
        )


async def remove_left_over(api: Api) -> None:
    """Remove the pods of processes that are no longer there, those of this one that no sandbox has, and those that have ended."""
    mine = owner()
    for found in (await api.call("GET", _pods(api), labelSelector=LABEL)).get("items") or ():
        name, whose = found["metadata"]["name"], (found["metadata"].get("annotations") or {}).get(OWNER, "")
        ended = (found.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        if name not in _in_use and (
            whose == mine or ended or (whose.count(":") == 3 and await in_thread(is_dead, whose))
        ):
            await _remove(api, name)


async def _remove(api: Api, name: str) -> None:
    with suppress_code(404):
        await api.call("DELETE", f"{_pods(api)}/{name}", {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})


@contextmanager
def suppress_code(code: int) -> Iterator[None]:
    """Go on where the API server refuses a call with this status of HTTP.

    Raises:
        ApiError: It refuses with another one.
    """
    try:
        yield
    except ApiError as error:
        if error.code != code:
            raise


def _waits_for(status: dict[str, Any], before: str) -> tuple[bool, str]:
    """Return whether a pod waits in vain, and what it waits for."""
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        if waiting := state.get("waiting"):
            reason = str(waiting.get("reason"))
            pull_failed = reason == "ImagePullBackOff" and before.startswith("ErrImagePull")  # which said why
            return reason in HOPELESS, before if pull_failed else _sentence(reason, waiting.get("message"), before)
        if ended := state.get("terminated"):
            return True, _sentence(
                f"{ended.get('reason')}, exit code {ended.get('exitCode')}", ended.get("message"), ""
            )
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and condition.get("type") == "PodScheduled":
            return False, _sentence(str(condition.get("reason")), condition.get("message"), before)
    if status.get("reason") or status.get("message"):
        return False, _sentence(str(status.get("reason")), status.get("message"), before)
    return False, before


def _sentence(reason: str, message: object, before: str) -> str:
    if message:
        return f"{reason}: {one_line(str(message))}"
    return before if before.startswith(reason) else reason


def _image_remedy(why: str, image: str) -> str:
    if "Image" not in why.partition(":")[0]:
        return ""
    if image == DEFAULT_IMAGE:
        return f"; push sandboxes/images/Dockerfile where the cluster pulls from, and name it in sandbox.image (it is {image!r})"
    return f" (sandbox.image = {image!r})"


def _pods(api: Api) -> str:
    return f"/api/v1/namespaces/{api.access.namespace}/pods"


def _policies(api: Api) -> str:
    return f"/apis/networking.k8s.io/v1/namespaces/{api.access.namespace}/networkpolicies"
