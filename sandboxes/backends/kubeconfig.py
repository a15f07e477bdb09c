"""How a Kubernetes cluster is reached: as `kubectl` reads it from KUBECONFIG or ~/.kube/config, and in a pod from its service account."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.errors import SandboxError, one_line

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLUGIN_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class ClusterAccess:
    """The address of an API server, and what a request to it carries."""

    server: str
    namespace: str
    tls: ssl.SSLContext | None
    """None for an address of http."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    server_name: str | None = None
    """What the server's certificate is of, where that is not the address."""
    proxy: str | None = None


def load_access(context: str | None = None, namespace: str | None = None) -> ClusterAccess:
    """Return the access of a context of the configuration (default: the current one). Blocks, also for a plug-in of credentials.

    Raises:
        SandboxError: There is no configuration, or it makes no sense; it names the file and the entry.
    """
    paths = [Path(name).expanduser() for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    found = [path for path in paths or [Path.home() / ".kube/config"] if path.is_file()]
    if not found:
        if context is None and not paths and "KUBERNETES_SERVICE_HOST" in os.environ:
            return _of_this_pod(namespace)
        looked = ", ".join(map(str, paths)) or "~/.kube/config"
        raise SandboxError(f"no Kubernetes configuration: there is no {looked}; set KUBECONFIG")
    config = _merged(found)
    name = context or config["current-context"]
    if not name:
        raise SandboxError(f"{found[0]} has no current-context; set one with `kubectl config use-context`")
    chosen = _entry(config, "context", name)
    cluster = _entry(config, "cluster", chosen.get("cluster"))
    user = _entry(config, "user", chosen["user"]) if chosen.get("user") else {}
    server = str(cluster.get("server") or "").rstrip("/")
    if not server.startswith(("http://", "https://")):
        raise SandboxError(
            f"the cluster {chosen.get('cluster')!r} of {found[0]} has server = {server!r}; use an address"
        )
    if user.get("exec"):
        user = {**user, **_from_plugin(user["exec"])}
    for kind in ("auth-provider", "username"):
        if user.get(kind):
            raise SandboxError(
                f"the user {chosen['user']!r} has `{kind}`, which is not read; use a token, a certificate or exec"
            )
    return ClusterAccess(
        server=server,
        namespace=namespace or chosen.get("namespace") or "default",
        tls=_tls(cluster, user) if server.startswith("https://") else None,
        headers=_headers(user),
        server_name=cluster.get("tls-server-name"),
        proxy=cluster.get("proxy-url"),
    )


def _of_this_pod(namespace: str | None) -> ClusterAccess:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    try:
        tls = ssl.create_default_context(cafile=SERVICE_ACCOUNT / "ca.crt")
        token = (SERVICE_ACCOUNT / "token").read_text().strip()
        own = (SERVICE_ACCOUNT / "namespace").read_text().strip()
    except OSError as error:
        raise SandboxError(f"this pod has no service account to make pods with: {error}") from error
    return ClusterAccess(f"https://{host}:{port}", namespace or own, tls, {"Authorization": f"Bearer {token}"})


def _merged(paths: list[Path]) -> dict[str, Any]:
    """Return all files as one: of entries with the same name, and of contexts that are current, the first counts.

    Raises:
        SandboxError: A file makes no sense, or PyYAML is missing.
    """
    try:
        import yaml
    except ImportError as error:
        raise SandboxError("PyYAML is not installed: pip install -e '/path/to/agentrl[kubernetes]'") from error
    merged: dict[str, Any] = {"context": {}, "cluster": {}, "user": {}, "current-context": None}
    for path in paths:
        try:
            config = yaml.safe_load(path.read_text()) or {}
            merged["current-context"] = merged["current-context"] or config.get("current-context")
            for kind in ("context", "cluster", "user"):
                for entry in config.get(f"{kind}s") or ():
                    merged[kind].setdefault(entry["name"], _absolute(entry.get(kind) or {}, path.parent))
        except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            raise SandboxError(
                f"{path} is no Kubernetes configuration: {type(error).__name__}: {one_line(error)}"
            ) from error
    return merged


def _absolute(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return an entry whose files are named from anywhere: a configuration names them from its own folder."""
    files = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
    return {key: str(folder / value) if key in files and value else value for key, value in entry.items()}


def _entry(config: dict[str, Any], kind: str, name: str | None) -> dict[str, Any]:
    if name not in config[kind]:
        names = ", ".join(config[kind]) or "none"
        raise SandboxError(f"the Kubernetes configuration has no {kind} {name!r}; it has {names}")
    found: dict[str, Any] = config[kind][name]
    return found


def _from_plugin(plugin: dict[str, Any]) -> dict[str, Any]:
    """Run a plug-in of credentials, and return what it says as a user's entry.

    Raises:
        SandboxError: It fails, or says nothing of use.
    """
    command = [plugin["command"], *(plugin.get("args") or ())]
    given = {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
    env = {entry["name"]: entry["value"] for entry in plugin.get("env") or ()}
    env["KUBERNETES_EXEC_INFO"] = json.dumps(given)
    try:
        done = subprocess.run(  # noqa: S603
            command, env={**os.environ, **env}, capture_output=True, stdin=subprocess.DEVNULL, timeout=PLUGIN_TIMEOUT_S
        )
        if done.returncode:
            raise SandboxError(
                f"the credential plug-in {command[0]} ended with {done.returncode}: {one_line(done.stderr.decode(errors='replace'))}"
            )
        status = json.loads(done.stdout)["status"]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        remedy = plugin.get("installHint") or "run it by hand to see why"
        raise SandboxError(
            f"the credential plug-in {command[0]} failed ({one_line(error)}); {one_line(remedy)}"
        ) from error
    encoded = {
        f"{name}-data": base64.b64encode(status[key].encode()).decode()
        for name, key in (("client-certificate", "clientCertificateData"), ("client-key", "clientKeyData"))
        if status.get(key)
    }
    return {**encoded, **({"token": status["token"]} if status.get("token") else {})}


def _headers(user: dict[str, Any]) -> dict[str, str]:
    token = user.get("token")
    if not token and user.get("tokenFile"):
        try:
            token = Path(user["tokenFile"]).read_text().strip()
        except OSError as error:
            raise SandboxError(f"the Kubernetes token cannot be read: {error}") from error
    return {"Authorization": f"Bearer {token}"} if token else {}


def _tls(cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    try:
        authority = cluster.get("certificate-authority-data")
        context = ssl.create_default_context(
            cafile=cluster.get("certificate-authority"),
            cadata=base64.b64decode(authority).decode() if authority else None,
        )
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        with tempfile.TemporaryDirectory() as folder:  # Python takes certificates of a client from files alone
            files = [user.get(name) for name in ("client-certificate", "client-key")]
            for at, name in enumerate(("client-certificate", "client-key")):
                if data := user.get(f"{name}-data"):
                    path = Path(folder, name)
                    path.touch(mode=0o600)
                    path.write_bytes(base64.b64decode(data))
                    files[at] = str(path)
            if files[0]:
                context.load_cert_chain(files[0], files[1])
    except (OSError, ValueError) as error:
        raise SandboxError(
            f"a certificate of the Kubernetes configuration cannot be used: {one_line(error)}"
        ) from error
    return context
