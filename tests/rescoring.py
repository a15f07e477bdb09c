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
        largest = 0.0
        for turn in record.turns:
            ids = turn.token_ids()
            start = len(ids) - len(turn.output_ids)
            for span in turn.versions:
                logits = self._models[span.version](torch.tensor([ids])).logits[0].float()
                scored = torch.log_softmax(logits / turn.temperature, dim=-1)
                for position in range(span.start, span.end):
                    own = scored[start + position - 1, turn.output_ids[position]]
                    largest = max(largest, abs(float(own) - turn.logprobs[position]))
        return largest
