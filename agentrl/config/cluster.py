"""The section `[cluster]`: the machines of a Ray cluster that a run uses, and what each of its processes takes of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from agentrl.config.section import NotNegative, Positive, Section

Amount = Annotated[float, Field(ge=0)]


class ClusterConfig(Section):
    """Workers, servers and the trainer's ranks on the nodes of a Ray cluster."""

    address: str = ""
    """"": this machine alone, without Ray; local: a Ray that is started here; auto or HOST:PORT: a cluster that runs."""
    rollout_workers: Positive = 1
    """Processes that run the workflows, spread over the nodes, in place of `rollout.workers`."""
    episodes_per_worker: Positive | None = None
    """Episodes in one of them at the same time, at most. Default: any number."""
    cpus_per_worker: Amount = 1
    """CPUs that the cluster sets aside for a rollout worker."""
    cpus_per_server: Amount = 1
    """CPUs that it sets aside for an engine server."""
    gpus_per_server: NotNegative = 0
    """GPUs of an engine server, all on one node."""
    worker_resources: dict[str, Amount] = Field(default_factory=dict)
    """Custom resources that a rollout worker takes: `--cluster.worker_resources.sandbox 1`."""
    server_resources: dict[str, Amount] = Field(default_factory=dict)
    """Custom resources that an engine server takes."""
    worker_labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that rollout workers may be on."""
    server_labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that engine servers may be on."""
    ranks_on_nodes: bool = False
    """Whether the trainer's ranks (`trainer.ranks`) are on nodes too. Default: they are where the run is started."""
    cpus_per_rank: Amount = 1
    """CPUs that the cluster sets aside for a rank, if ranks are on nodes, as in what follows."""
    gpus_per_rank: NotNegative = 0
    """GPUs of a rank."""
    rank_resources: dict[str, Amount] = Field(default_factory=dict)
    """Custom resources that a rank takes."""
    rank_labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that ranks may be on."""

    @model_validator(mode="after")
    def _check_ranks(self) -> ClusterConfig:
        given = [name for name in ("gpus_per_rank", "rank_resources", "rank_labels") if getattr(self, name)]
        if given and not self.ranks_on_nodes:
            raise ValueError(
                f"{given[0]} is given, but ranks are not on nodes; set ranks_on_nodes = true, or leave it out"
            )
        return self
