"""Folders of this machine that a sandbox shows, read-only."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import ConfigError, SandboxError
from agentrl.sandboxes import BackendName, SandboxSpec, choose_backend
from agentrl.sandboxes.choose import start_sandbox

pytestmark = pytest.mark.anyio


async def test_a_folder_is_read_and_not_written(backend: BackendName, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("here")
    tmp_path.chmod(0o755)  # a sandbox has another user
    spec = SandboxSpec(folders=(("/opt/tools", str(tmp_path)),))
    async with start_sandbox(await choose_backend(backend, spec), spec) as sandbox:
        assert (await sandbox.run(["cat", "/opt/tools/tool"])).stdout == b"here"
        assert not (await sandbox.run(["sh", "-c", "echo x > /opt/tools/tool || exit 3"])).ok
        await sandbox.reset()
        assert (await sandbox.run(["cat", "/opt/tools/tool"])).stdout == b"here"
    assert (tmp_path / "tool").read_text() == "here"


async def test_a_folder_that_is_missing_is_named(bubblewrap: BackendName, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="/none' at '/opt/tools', and there is no such folder"):
        await choose_backend(bubblewrap, SandboxSpec(folders=(("/opt/tools", str(tmp_path / "none")),)))


@pytest.mark.parametrize(
    ("inside", "here", "complaint"),
    [
        ("/sandbox/x", "/srv", "is below /sandbox; use one such as '/opt/tools'"),
        ("/usr", "/srv", "is below /usr"),
        ("/opt/../usr", "/srv", "is no absolute path without"),
        ("opt", "/srv", "is no absolute path without"),
        ("/opt/x", "srv", "name the folder by its absolute path"),
    ],
)
def test_a_folder_goes_where_a_sandbox_has_none(inside: str, here: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        SandboxSpec(folders=((inside, here),))
