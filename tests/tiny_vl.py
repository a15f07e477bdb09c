"""A tiny random vision-language model of the Qwen3-VL kind, made from a configuration, and an independent scorer of it."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from agentrl.models import NANO
from agentrl.record.trajectory import Turn

PROCESSOR = {"patch_size": 8, "temporal_patch_size": 2, "merge_size": 2}
SIZE = {"shortest_edge": 256, "longest_edge": 16384}


def make_tiny_vl(directory: Path) -> None:
    """0.4 M random parameters; images of 16 x 16 pixels a token."""
    tokenizer = AutoTokenizer.from_pretrained(NANO)
    places = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer.add_tokens(places, special_tokens=True)
    start, end, image, video = tokenizer.convert_tokens_to_ids(places)
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "patch_size": PROCESSOR["patch_size"],
        "spatial_merge_size": PROCESSOR["merge_size"],
        "temporal_patch_size": PROCESSOR["temporal_patch_size"],
        "out_hidden_size": 64,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0],
    }
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    Qwen3VLForConditionalGeneration(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    normal = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": SIZE, "processor_class": "Qwen3VLProcessor"}
    image_settings = {"image_processor_type": "Qwen2VLImageProcessorFast", **PROCESSOR, **normal}
    (directory / "preprocessor_config.json").write_text(json.dumps(image_settings))
    video_settings = {"video_processor_type": "Qwen3VLVideoProcessor", **PROCESSOR, "size": SIZE}
    (directory / "video_preprocessor_config.json").write_text(json.dumps(video_settings))


def picture(width: int, height: int, colour: tuple[int, int, int]) -> str:
    """A data URL of one colour with a diagonal, so that its patches differ."""
    image = Image.new("RGB", (width, height), colour)
    for x in range(min(width, height)):
        image.putpixel((x, x), (255, 255, 255))
    data = io.BytesIO()
    image.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


@torch.no_grad()
def largest_difference(directory: Path, turns: list[Turn]) -> float:
    """max |recorded - re-scored logprob| by a plain forward pass over ids and pixels."""
    model = Qwen3VLForConditionalGeneration.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    processor = AutoImageProcessor.from_pretrained(directory, backend="pil")
    largest = 0.0
    for turn in turns:
        ids = torch.tensor([turn.token_ids()])
        images = [Image.open(io.BytesIO(base64.b64decode(i.url.partition(",")[2]))) for i in turn.path_images()]
        seen = dict(processor(images=images, return_tensors="pt")) if images else {}
        types = (ids == model.config.image_token_id).int()
        logits = model(input_ids=ids, mm_token_type_ids=types, **seen).logits[0].float()
        scored = torch.log_softmax(logits / turn.temperature, -1)
        start = ids.shape[1] - len(turn.output_ids)
        for position, (token, logprob) in enumerate(zip(turn.output_ids, turn.logprobs, strict=True)):
            largest = max(largest, abs(float(scored[start + position - 1, token]) - logprob))
    return largest
