"""A stand-in for a cluster: the calls of the Kubernetes API that the backend makes, held to the recorded schema, and pods that are real programs.

A pod's command runs under bubblewrap, as the user that the pod names. It is no cluster: docs/sandboxes.md says what a real one was seen to do.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import jsonschema
from aiohttp import WSMsgType, web

SCHEMA = json.loads(Path(__file__).with_name("kubernetes_schema.json").read_text())
POD, POLICY = "io.k8s.api.core.v1.Pod", "io.k8s.api.networking.v1.NetworkPolicy"
DELETE = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
PODS = "/api/v1/namespaces/{namespace}/pods"


def fault_of(kind: str, value: Any) -> str | None:
    """What is against the schema, if anything is."""
    validator = jsonschema.Draft7Validator({"$ref": f"#/definitions/{kind}", **SCHEMA})
    error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    return None if error is None else f"{error.json_path}: {error.message}"


class Cluster:
    """Its pods by name, and what was asked of it."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.policies: list[dict[str, Any]] = []
        self.programs: dict[str, asyncio.subprocess.Process] = {}
        self.tokens: set[str | None] = set()
        self.status: dict[str, Any] = {"phase": "Running"}
        """That of every new pod."""

    async def create(self, request: web.Request) -> web.Response:
        self.tokens.add(request.headers.get("Authorization"))
        made = await request.json()
        if (fault := fault_of(POD, made)) is not None:
            return refusal(422, "Invalid", f"Pod is invalid: {fault}")
        if request.match_info["namespace"] != "here":
            return refusal(404, "NotFound", f'namespaces "{request.match_info["namespace"]}" not found')
        if "dryRun" not in request.query:
            self.pods[made["metadata"]["name"]] = made | {"status": self.status}
        return web.json_response(made, status=201)

    async def policy(self, request: web.Request) -> web.Response:
        made = await request.json()
        if (fault := fault_of(POLICY, made)) is not None:
            return refusal(422, "Invalid", fault)
        if made in self.policies:
            return refusal(409, "AlreadyExists", "it is there")
        self.policies.append(made)
        return web.json_response(made, status=201)

    async def list(self, request: web.Request) -> web.Response:
        label = request.query["labelSelector"]
        return web.json_response({"items": [pod for pod in self.pods.values() if label in pod["metadata"]["labels"]]})

    async def get(self, request: web.Request) -> web.Response:
        return web.json_response(self.pods[request.match_info["pod"]])

    async def delete(self, request: web.Request) -> web.Response:
        if (fault := fault_of(DELETE, await request.json())) is not None:
            return refusal(422, "Invalid", fault)
        name = request.match_info["pod"]
        if self.pods.pop(name, None) is None:
            return refusal(404, "NotFound", f'pods "{name}" not found')
        self.kill(name)
        return web.json_response({})

    def kill(self, name: str) -> None:
        if name in self.programs:
            with suppress(ProcessLookupError):
                self.programs[name].kill()

    async def attach(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"), max_msg_size=0)
        await socket.prepare(request)
        name = request.match_info["pod"]
        program = self.programs[name] = await start(self.pods[name]["spec"])
        assert program.stdin is not None
        pumps = [
            asyncio.ensure_future(pump(socket, channel, pipe))
            for channel, pipe in ((1, program.stdout), (2, program.stderr))
        ]

        async def report() -> None:
            await asyncio.gather(*pumps)
            code = await program.wait()
            status = (
                {"status": "Failure", "message": f"command terminated with exit code {code}"}
                if code
                else {"status": "Success"}
            )
            with suppress(ConnectionError):
                await socket.send_bytes(b"\x03" + json.dumps(status).encode())
                await socket.close()

        reporting = asyncio.ensure_future(report())
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[0] == 0:
                with suppress(ConnectionError):
                    program.stdin.write(message.data[1:])
                    await program.stdin.drain()
        program.stdin.close()  # as with stdinOnce: who attached is gone
        await reporting
        return socket

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post(PODS, self.create)
        app.router.add_get(PODS, self.list)
        app.router.add_get(PODS + "/{pod}", self.get)
        app.router.add_delete(PODS + "/{pod}", self.delete)
        app.router.add_get(PODS + "/{pod}/attach", self.attach)
        app.router.add_post("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies", self.policy)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            for name in self.programs:
                self.kill(name)
            await runner.cleanup()


async def start(spec: dict[str, Any]) -> asyncio.subprocess.Process:
    """Start the command of a pod, with the folders that it mounts."""
    (container,) = spec["containers"]
    user, group = (str(spec["securityContext"][name]) for name in ("runAsUser", "runAsGroup"))
    command = (
        f"bwrap --unshare-all --unshare-user --uid {user} --gid {group} --die-with-parent --as-pid-1 --cap-drop ALL"
    )
    if os.geteuid() == 0:  # the kernel bounds no process of root's
        command = f"setpriv --reuid={user} --regid={group} --clear-groups {command}"
    command += " --ro-bind /usr /usr --ro-bind /etc /etc --dir /var --dev /dev --proc /proc"
    for name in ("bin", "sbin", "lib", "lib64"):
        command += f" --symlink usr/{name} /{name}"
    sizes = {volume["name"]: volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"]}
    for mount in container["volumeMounts"]:
        size = int(sizes[mount["name"]].removesuffix("Mi")) * 2**20
        command += f" --size {size} --tmpfs {mount['mountPath']}"
    command += f" --remount-ro /dev --remount-ro / --chdir {container['workingDir']} --"
    words = [*command.split(), "/usr/bin/python3", *container["command"][1:]]
    pipe = subprocess.PIPE
    return await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)


async def pump(socket: web.WebSocketResponse, channel: int, pipe: asyncio.StreamReader | None) -> None:
    """Send what a program says over a channel."""
    assert pipe is not None
    with suppress(ConnectionError):
        while data := await pipe.read(1 << 15):
            await socket.send_bytes(bytes([channel]) + data)


def refusal(code: int, reason: str, message: str) -> web.Response:
    """An error as the API server gives it."""
    return web.json_response({"kind": "Status", "status": "Failure", "reason": reason, "message": message}, status=code)
