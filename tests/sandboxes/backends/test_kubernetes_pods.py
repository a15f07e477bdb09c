"""Pods as sandboxes, on a stand-in for a cluster whose pods are real programs. A real cluster's answers are quoted where they matter."""

from __future__ import annotations

import json
import pickle
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.errors import SandboxError, SandboxLostError
from agentrl.sandboxes import BackendName, Limits, Sandbox, SandboxSpec, open_sandbox
from agentrl.sandboxes.backends.kubeconfig import load_access
from agentrl.sandboxes.backends.kubernetes_api import ApiServerError
from agentrl.sandboxes.backends.kubernetes_objects import network_policy, pod
from agentrl.sandboxes.backends.kubernetes_pods import Kubernetes
from agentrl.testing import check_backend
from tests.sandboxes.backends.cluster import POD, POLICY, Cluster, fault_of

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def no_blocking_call_in_the_event_loop() -> None:
    """The stand-in is no code of agentrl."""


def configuration(server: str, **user: Any) -> dict[str, Any]:
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "here"}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
    }


@pytest.fixture
async def cluster(bubblewrap: BackendName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    cluster = Cluster()
    async with cluster.serve() as url:
        (tmp_path / "config").write_text(yaml.safe_dump(configuration(url, token="secret")))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield cluster


@pytest.mark.soak
async def test_pods_keep_the_contract(cluster: Cluster) -> None:
    async def loses(sandbox: Sandbox) -> None:
        for name in cluster.pods:
            cluster.kill(name)

    async def alive() -> int:
        return len(cluster.pods)

    await check_backend("kubernetes", loses=loses, alive=alive, many=2)
    assert cluster.tokens == {"Bearer secret"}
    assert cluster.policies == [network_policy()]


def test_every_object_is_as_the_schema_has_it_and_has_no_rights() -> None:
    spec = SandboxSpec(limits=Limits(memory_mb=100, disk_mb=10), cpus=0.5, runtime="gvisor")
    made = pod("n", spec, uid=1_500_000_000, owner="a:b:1:2", deadline_s=60, overrides={"nodeSelector": {"a": "b"}})
    assert fault_of(POD, made) is None
    assert fault_of(POLICY, network_policy()) is None
    assert fault_of(POD, {**made, "spec": {**made["spec"], "hostNetwrok": True}}) is not None
    (container,) = made["spec"]["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert made["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert made["spec"]["automountServiceAccountToken"] is made["spec"]["hostNetwork"] is False
    assert made["spec"]["dnsPolicy"] == "None"
    assert made["spec"]["runtimeClassName"] == "gvisor"
    assert container["resources"]["limits"] == {"memory": "194Mi", "cpu": "500m", "ephemeral-storage": "64Mi"}
    assert "dnsPolicy" not in pod("n", SandboxSpec(network=True), uid=1, owner="", deadline_s=1, overrides={})["spec"]


WAITING = {
    # As a kubelet 1.20 said them.
    "ImagePullBackOff": (
        'Back-off pulling image "x"',
        r"does not start: ImagePullBackOff: Back-off.* \(sandbox.image = 'x'\)",
    ),
    "InvalidImageName": ("Failed to apply default image tag", "does not start: InvalidImageName"),
}


@pytest.mark.soak
@pytest.mark.parametrize("reason", WAITING)
async def test_an_image_that_cannot_be_had_is_an_error_at_once(cluster: Cluster, reason: str) -> None:
    message, says = WAITING[reason]
    cluster.status = {
        "phase": "Pending",
        "containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}],
    }
    with pytest.raises(SandboxError, match=says):
        async with open_sandbox(backend=Kubernetes(), image="x"):
            pass
    assert cluster.pods == {}


@pytest.mark.soak
async def test_a_pod_that_finds_no_node_is_an_error_in_time(cluster: Cluster) -> None:
    why = "0/1 nodes are available: 1 Insufficient memory."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    cluster.status = {"phase": "Pending", "conditions": [condition]}
    with pytest.raises(SandboxError, match=r"did not start within 0.5 s: Unschedulable: 0/1 nodes"):
        async with open_sandbox(backend=Kubernetes(start_timeout_s=0.5)):
            pass
    assert cluster.pods == {}


@pytest.mark.soak
async def test_what_is_refused_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for backend, says in (
        (Kubernetes(namespace="none"), r'namespaces "none" not found \(404 NotFound\)'),
        (Kubernetes(pod_spec={"nodeSelectr": {}}), r"Pod is invalid: .*nodeSelectr.*\(422 Invalid\)"),
        (Kubernetes(context="nope"), "has no context 'nope'; it has c"),
    ):
        with pytest.raises(SandboxError, match=says):
            await backend.prepare(SandboxSpec())
    with pytest.raises(SandboxError, match="which the nodes of a cluster do not have"):
        await Kubernetes().prepare(SandboxSpec(folders=(("/opt/x", "/home"),)))


def test_a_refusal_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(ApiServerError(404, "NotFound", "no such pod")))
    assert (str(error), error.code) == ("Kubernetes: no such pod (404 NotFound)", 404)


@pytest.mark.soak
async def test_what_a_dead_run_left_is_removed_and_nothing_else(cluster: Cluster) -> None:
    spec = SandboxSpec()
    for name, owner, phase in (
        ("dead", "{host}:x:1:1", "Running"),
        ("ended", "else:x:1:1", "Succeeded"),
        ("theirs", "else:x:1:1", "Running"),
    ):
        left = pod(name, spec, uid=1, owner=owner.format(host=socket.gethostname()), deadline_s=9, overrides={})
        cluster.pods[name] = left | {"status": {"phase": phase}}
    async with open_sandbox(backend=Kubernetes()) as sandbox:
        assert len(cluster.pods) == 2
        await Kubernetes().prepare(spec)
        assert (await sandbox.run(["true"])).ok
    assert list(cluster.pods) == ["theirs"]


@pytest.mark.soak
async def test_a_pod_says_what_it_said_last(cluster: Cluster) -> None:
    async with open_sandbox(backend=Kubernetes()) as sandbox:
        for name in cluster.pods:
            cluster.kill(name)
        with pytest.raises(SandboxLostError, match="its pod ended: command terminated with exit code"):
            await sandbox.run(["sleep", "100"])


def test_a_configuration_is_read_as_kubectl_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("of a file\n")
    plugin = tmp_path / "plugin.py"
    said = {"status": {"token": "of a plug-in"}}
    plugin.write_text(
        f"import os, json; json.loads(os.environ['KUBERNETES_EXEC_INFO']); assert os.environ['A'] == 'b'; print({json.dumps(said)!r})"
    )
    users = {
        "plain": ({"token": "plain"}, "Bearer plain"),
        "file": ({"tokenFile": "token"}, "Bearer of a file"),
        "plugin": (
            {
                "exec": {
                    "command": sys.executable,
                    "args": [str(plugin)],
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "env": [{"name": "A", "value": "b"}],
                }
            },
            "Bearer of a plug-in",
        ),
    }
    paths = []
    for name, (user, _) in users.items():
        one = configuration("http://localhost:1", **user)
        one["contexts"][0]["name"] = one["users"][0]["name"] = one["contexts"][0]["context"]["user"] = name
        one["current-context"] = name
        paths.append(tmp_path / name)
        paths[-1].write_text(yaml.safe_dump(one))
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, paths)))
    assert load_access().headers == {"Authorization": "Bearer plain"}, "the first file's context is the current one"
    for name, (_, header) in users.items():
        assert load_access(name).headers == {"Authorization": header}
    assert load_access().namespace == "here"
    assert load_access(namespace="other").namespace == "other"
    for changed, says in (
        (
            {"users": [{"name": "u", "user": {"auth-provider": {}, "username": "me"}}]},
            "has `username`, which is not read",
        ),
        (
            {"users": [{"name": "u", "user": {"exec": {"command": "/no/such", "installHint": "install it"}}}]},
            "the credential plug-in /no/such failed .*install it",
        ),
        ({"clusters": [{"name": "k", "cluster": {"server": "localhost"}}]}, "has server = 'localhost'; use an address"),
        (
            {
                "clusters": [
                    {"name": "k", "cluster": {"server": "https://localhost", "certificate-authority-data": "eA=="}}
                ]
            },
            "a certificate .* cannot be used",
        ),
        ({"contexts": 3}, "is no Kubernetes configuration"),
    ):
        paths[0].write_text(yaml.safe_dump(configuration("http://localhost:1") | changed))
        monkeypatch.setenv("KUBECONFIG", str(paths[0]))
        with pytest.raises(SandboxError, match=says):
            load_access()
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")
    with pytest.raises(SandboxError, match="there is no /no/such/file; set KUBECONFIG"):
        load_access()
