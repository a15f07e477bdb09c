"""SGLang's own router in front of a group of servers: it says which they are, and they are called without it.

A router passes one request on to one server, but weights, pauses and aborts must reach every one, and a reply that is gone on with
elsewhere needs to know who has it. So what is asked of the router is its list of workers alone, again and again: servers join and leave
this engine as they join and leave the router, which other clients may go on to use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import anyio

from agentrl.engine.client.server_errors import ServerLostError
from agentrl.engine.client.sglang_server import SGLangServer
from agentrl.errors import EngineError
from agentrl.reporting.logger import logger

if TYPE_CHECKING:
    from agentrl.engine.client.sglang import SGLangEngine

log = logger(__name__)


async def servers_behind(router: SGLangServer, timeout_s: float) -> list[str] | None:
    """Return the URLs of the servers behind a router; None: it is no router, but a server itself.

    Raises:
        EngineError: It does not answer, or its servers cannot be used one by one.
    """
    workers = (await _listed(router, "/workers", timeout_s)).get("workers")
    if not isinstance(workers, list):
        workers = (await _listed(router, "/list_workers", timeout_s)).get("urls")  # before version 0.2
    if not isinstance(workers, list):
        return None
    return list(dict.fromkeys(_url_of(worker, router.url) for worker in workers))


async def _listed(router: SGLangServer, path: str, timeout_s: float) -> dict[str, Any]:
    try:
        return await router.get(path, timeout_s, missing_ok=True)
    except ServerLostError:
        raise
    except EngineError:  # a server refuses what it does not know in its own way
        return {}


def _url_of(worker: Any, router: str) -> str:
    described = worker if isinstance(worker, dict) else {"url": worker}
    url, kind = described.get("url"), described.get("worker_type", "regular")
    if kind != "regular":
        raise EngineError(
            f"the router {router} has {kind} workers: servers that only prefill or only decode cannot be asked for a whole reply; put whole "
            "servers behind it"
        )
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise EngineError(
            f"the router {router} lists the worker {url!r:.80}, which does not speak HTTP; start it without gRPC"
        )
    return url.rstrip("/")


async def resolved(
    servers: Sequence[SGLangServer], timeout_s: float
) -> tuple[list[str], dict[SGLangServer, list[str]]]:
    """Return the URLs of all servers, those behind routers included, and the routers with theirs.

    Raises:
        EngineError: One does not answer, or a router has no servers.
    """
    urls: list[str] = []
    routers = {}
    for server in servers:
        behind = await servers_behind(server, timeout_s)
        if behind is None:
            urls.append(server.address)
            continue
        if not behind:
            raise EngineError(
                f"the router {server.url} has no servers yet: start them, and see that it lists them under /workers"
            )
        urls += behind
        routers[server] = behind
    return list(dict.fromkeys(urls)), routers


async def follow_router(router: SGLangServer, engine: SGLangEngine, first: Sequence[str], every_s: float) -> None:
    """Have servers join and leave an engine as they join and leave a router, until cancelled.

    Args:
        router: The router.
        engine: The engine.
        first: The servers that were behind it at first.
        every_s: Time between two looks, which is also the bound of one.
    """
    known = set(first)
    while True:
        await anyio.sleep(every_s)
        try:
            listed = set(await servers_behind(router, every_s) or known)
        except EngineError as error:
            log.warning("the servers stay as they are: %s", error)
            continue
        for change, urls in ((engine.add_server, listed - known), (engine.remove_server, known - listed)):
            for url in sorted(urls):
                try:
                    await change(url)
                except EngineError as error:
                    log.warning("the servers of the router %s changed: %s", router.url, error)
                else:
                    known ^= {url}
