"""Real boxes: each backend in turn, or the reason why it is not here."""

from __future__ import annotations

import anyio
import pytest

from agentrl.errors import SandboxError
from agentrl.sandboxes import BackendName, BoxSpec, choose_backend
from tests.components import missing

REMEDY = {
    "docker": "start a Docker engine with the image agentrl/sandbox (scripts/start_sandboxes.sh)",
    "bubblewrap": "install bubblewrap (scripts/start_sandboxes.sh)",
}


def working_backend(name: BackendName) -> BackendName:
    """`name`, if it works here."""
    try:
        anyio.run(choose_backend, name, BoxSpec())
    except SandboxError as error:
        missing(f"{error}: {REMEDY[name]}")
    return name


@pytest.fixture(scope="session", params=["bubblewrap", "docker"])
def backend(request: pytest.FixtureRequest) -> BackendName:
    """Each backend in turn."""
    return working_backend(request.param)


@pytest.fixture(scope="session")
def docker() -> BackendName:
    return working_backend("docker")


@pytest.fixture(scope="session")
def bubblewrap() -> BackendName:
    return working_backend("bubblewrap")
