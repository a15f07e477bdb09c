"""An independent re-scoring of a token record: plain transformers, its own attention, one sequence at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentrl.models import NANO
from agentrl.record.trajectory import TokenRecord


class Rescorer:
    """Holds one model a version."""

    def __init__(self, versions: Sequence[Path]) -> None:
        self._models = []
        for path in versions:
            model = AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32, attn_implementation="eager")
            model.load_state_dict(load_file(path / "model.safetensors"), strict=False)
            model.tie_weights()
            self._models.append(model.eval())

    @torch.no_grad()
    def largest_difference(self, record: TokenRecord) -> float:
        """max |recorded − re-scored logprob| over all generated tokens, each under the weights of its own version."""
        largest = torch.zeros((), dtype=torch.float64)
        for turn in record.turns:
            ids = turn.token_ids()
            start = len(ids) - len(turn.output_ids)
            by_version: dict[int, torch.Tensor] = {}
            for span in turn.versions:
                if span.version not in by_version:
                    logits = self._models[span.version](torch.tensor([ids])).logits[0, start - 1 : -1].float()
                    scored = torch.log_softmax(logits / turn.temperature, dim=-1)
                    by_version[span.version] = scored.gather(1, torch.tensor(turn.output_ids)[:, None])[:, 0]
                own = by_version[span.version][span.start : span.end].double()
                said = torch.tensor(turn.logprobs[span.start : span.end], dtype=torch.float64)
                if len(said):
                    largest = torch.maximum(largest, (own - said).abs().max())  # which keeps what is not a number
        return float(largest)
