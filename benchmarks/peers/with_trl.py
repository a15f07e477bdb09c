"""The calculator job as a user of TRL writes it: `python with_trl.py MODEL TASKS OUT STEPS LEARNING_RATE SEED`."""

import sys
from pathlib import Path
from typing import Any

import trl
from arithmetic import evaluate, reward
from datasets import load_dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

MODEL, TASKS, OUT, STEPS, LEARNING_RATE, SEED = sys.argv[1:]
SCHEMA = (
    '{"type": "function", "function": {"name": "calculator", "description": "Evaluate an arithmetic expression.", "parameters": '
    '{"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}}'
)


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: The expression.
    """
    return evaluate(expression)


def last_number_is_right(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [reward(turns[-1]["content"] or "", right) for turns, right in zip(completions, answer, strict=True)]


tokenizer = AutoTokenizer.from_pretrained(MODEL)
tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
tasks = load_dataset("json", data_files=TASKS, split="train").select_columns(["question", "answer"])
tasks = tasks.map(lambda task: {"prompt": [{"role": "user", "content": task["question"]}]}, remove_columns="question")
trainer = GRPOTrainer(
    model=MODEL,
    processing_class=tokenizer,
    train_dataset=tasks,
    reward_funcs=last_number_is_right,
    tools=[calculator],
    args=GRPOConfig(
        output_dir=OUT,
        max_steps=2 * int(STEPS),
        steps_per_generation=2,
        per_device_train_batch_size=32,
        num_generations=8,
        max_completion_length=128,
        max_tool_calling_iterations=3,
        learning_rate=float(LEARNING_RATE),
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=6,
        epsilon_high=0.28,
        use_cpu=True,
        bf16=False,
        seed=int(SEED),
        logging_steps=1,
        save_steps=4,
        save_only_model=True,
        report_to="none",
    ),
)
# The prompt shows the tool as the model was warm-started with it; the schema that TRL makes of the function says more.
trainer.chat_template = (trainer.chat_template or tokenizer.chat_template).replace("tool | tojson", repr(SCHEMA))
trainer.train()
