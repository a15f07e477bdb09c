"""What a sandbox is to Kubernetes: a pod that has no rights, and a policy that gives it no network. Checked against the recorded schema."""

from __future__ import annotations

import math
from typing import Any

from agentrl.sandboxes.backends.control_group import OWN_MEMORY_MB
from agentrl.sandboxes.backends.start_arguments import FOLDERS, PATH
from agentrl.sandboxes.backends.streams import start_command
from agentrl.sandboxes.inside.namespaces import FIRST_UID, LAST_UID
from agentrl.sandboxes.seams import WORK, SandboxSpec

LABEL = "agentrl.sandbox"
NETWORK_LABEL = "agentrl.network"
OWNER = "agentrl.owner"
"""An annotation: which process a pod belongs to."""
CONTAINER = "sandbox"
POLICY = "agentrl-no-network"
VOLUMES = {path.rpartition("/")[2]: path for path in (WORK, *FOLDERS)}
"""The folders in memory, by the names of their volumes."""
IDLE_CPU = 100
"""Thousandths of a core that are kept for a sandbox, most of which wait; it may use all of its `cpus` where a node has them free."""
USERS = (FIRST_UID, LAST_UID)
"""Where the user ids of pods come from: RLIMIT_NPROC counts all that a user has on a node."""


def pod(
    name: str, spec: SandboxSpec, *, uid: int, owner: str, deadline_s: int, overrides: dict[str, Any]
) -> dict[str, Any]:
    """Return the pod of a sandbox. It ends when its input does.

    Args:
        name: Its name.
        spec: The sandbox.
        uid: The user of everything in it.
        owner: Which process it belongs to.
        deadline_s: After so long the cluster ends it, whatever became of its owner.
        overrides: Fields of the pod's `spec` beside these, such as `nodeSelector`.

    Returns:
        The object, as JSON.
    """
    network = "yes" if spec.network else "no"
    memory_volume = {"medium": "Memory", "sizeLimit": f"{spec.limits.disk_mb}Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {LABEL: "yes", NETWORK_LABEL: network},
            "annotations": {OWNER: owner},
        },
        "spec": {
            "activeDeadlineSeconds": deadline_s,
            "automountServiceAccountToken": False,
            "containers": [_container(spec)],
            "enableServiceLinks": False,
            "hostNetwork": False,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": uid,
                "runAsGroup": uid,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": volume, "emptyDir": memory_volume} for volume in VOLUMES],
            **({} if spec.network else {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}),
            **({"runtimeClassName": spec.runtime} if spec.runtime else {}),
            **overrides,
        },
    }


def _container(spec: SandboxSpec) -> dict[str, Any]:
    limits = spec.limits
    memory = f"{limits.memory_mb + len(VOLUMES) * limits.disk_mb + OWN_MEMORY_MB}Mi"
    cpu = math.ceil(spec.cpus * 1000)
    resources = {"memory": memory, "cpu": f"{cpu}m", "ephemeral-storage": "64Mi"}
    return {
        "name": CONTAINER,
        "image": spec.image,
        "command": start_command(),
        "env": [{"name": "PATH", "value": PATH}, {"name": "LANG", "value": "C.UTF-8"}],
        "workingDir": WORK,
        "stdin": True,
        "stdinOnce": True,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"limits": resources, "requests": {**resources, "cpu": f"{min(cpu, IDLE_CPU)}m"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in VOLUMES.items()],
    }


def network_policy() -> dict[str, Any]:
    """Return the policy under which sandboxes without a network reach nobody, and nobody reaches them."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": POLICY, "labels": {LABEL: "yes"}},
        "spec": {"podSelector": {"matchLabels": {NETWORK_LABEL: "no"}}, "policyTypes": ["Ingress", "Egress"]},
    }
