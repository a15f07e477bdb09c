"""The calculator job as a user of a Tinker server writes it: `python with_skyrl_tx.py MODEL TASKS OUT STEPS LEARNING_RATE SEED`.

The server is SkyRL's tx on JAX, which trains LoRA adapters and is called with Tinker's own client.
"""

import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import requests
import tinker
from arithmetic import evaluate, reward
from tinker import types
from transformers import AutoTokenizer

MODEL, TASKS, OUT, STEPS, LEARNING_RATE, SEED = sys.argv[1:]
URL, GROUPS, GROUP_SIZE = "http://127.0.0.1:8771", 8, 8
BACKEND = {"max_lora_adapters": 2, "max_lora_rank": 32, "sample_max_num_sequences": 64, "train_micro_batch_size": 32}
SYSTEM = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "calculator", "description": "Evaluate an arithmetic expression.", \
"parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)


class Conversation:
    def __init__(self, task: dict[str, Any]) -> None:
        self.answer, self.reward, self.done = task["answer"], 0.0, False
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.sampled: list[float] = []
        question = f"<|im_start|>user\n{task['question']}<|im_end|>\n<|im_start|>assistant\n"
        self.add_text(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n{question}")

    def add(self, tokens: list[int], logprobs: list[float], sampled: float) -> None:
        self.tokens += tokens
        self.logprobs += logprobs
        self.sampled += [sampled] * len(tokens)

    def add_text(self, text: str) -> None:
        tokens = tokenizer.encode(text)
        self.add(tokens, [0.0] * len(tokens), 0.0)

    def reply(self, sequence: Any) -> None:
        self.add(sequence.tokens, sequence.logprobs, 1.0)
        before, _, call = tokenizer.decode(sequence.tokens).partition("<tool_call>")
        if not call or sequence.tokens[-1] != tokenizer.eos_token_id:
            self.reward, self.done = reward(before.removesuffix("<|im_end|>"), self.answer), True
            return
        try:
            result = evaluate(json.loads(call.partition("</tool_call>")[0])["arguments"]["expression"])
        except (ValueError, KeyError, TypeError) as error:
            result = f"error: {error}"
        response = f"<tool_response>\n{result}\n</tool_response>"
        self.add_text(f"\n<|im_start|>user\n{response}<|im_end|>\n<|im_start|>assistant\n")

    def datum(self, advantage: float) -> types.Datum:
        def column(values: list[Any], dtype: Any) -> types.TensorData:
            return types.TensorData(data=values[1:], dtype=dtype, shape=[len(values) - 1])

        inputs = {
            "target_tokens": column(self.tokens, "int64"),
            "logprobs": column(self.logprobs, "float32"),
            "advantages": column([advantage * one for one in self.sampled], "float32"),
            "weights": column(self.sampled, "float32"),
        }
        return types.Datum(model_input=types.ModelInput.from_ints(self.tokens[:-1]), loss_fn_inputs=inputs)


def play(policy: Any, tasks: list[dict[str, Any]], seed: int) -> list[list[Conversation]]:
    groups = [[Conversation(task) for _ in range(GROUP_SIZE)] for task in tasks]
    for turn in range(4):
        going = [one for group in groups for one in group if not one.done]
        waiting = []
        for number, one in enumerate(going):
            sampling = types.SamplingParams(
                max_tokens=64, temperature=1.0, stop=[tokenizer.eos_token_id], seed=seed + 100 * turn + number
            )
            prompt = types.ModelInput.from_ints(one.tokens)
            waiting.append(policy.sample(prompt=prompt, num_samples=1, sampling_params=sampling))
        for one, future in zip(going, waiting, strict=True):
            one.reply(future.result().sequences[0])
    return groups


def train(client: Any) -> None:
    tasks = [json.loads(line) for line in Path(TASKS).read_text().splitlines()]
    rng, generated = random.Random(SEED), 0
    for step in range(1, int(STEPS) + 1):
        started = time.perf_counter()
        policy = client.save_weights_and_get_sampling_client(f"step-{step - 1:06d}")
        groups = play(policy, rng.sample(tasks, GROUPS), rng.randrange(2**30))
        data = []
        for group in groups:
            rewards = [one.reward for one in group]
            mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
            data += [one.datum((one.reward - mean) / (deviation + 1e-4)) for one in group]
        rng.shuffle(data)
        warm = float(LEARNING_RATE) * min(1.0, step / 3)
        for half in (data[: len(data) // 2], data[len(data) // 2 :]):
            computed = client.forward_backward(half, "ppo")
            stepped = client.optim_step(types.AdamParams(learning_rate=warm, beta1=0.9, beta2=0.95, eps=1e-8))
            computed.result()
            stepped.result()
        generated += sum(int(sum(one.sampled)) for group in groups for one in group)
        if step % 2 == 0:
            client.save_weights_for_sampler(f"kept-{step:06d}").result()
        row = {"step": step, "step_s": time.perf_counter() - started, "tokens": generated}
        row["reward"] = statistics.fmean(one.reward for group in groups for one in group)
        with (Path(OUT) / "metrics.jsonl").open("a") as file:
            print(json.dumps(row), file=file)


Path(OUT).mkdir(parents=True)
command = [sys.executable, "-m", "tx.tinker.api", "--base-model", MODEL, "--host", "127.0.0.1", "--port", URL[-4:]]
command += ["--backend-config", json.dumps(BACKEND), "--checkpoints-base", f"{OUT}/checkpoints"]
server = subprocess.Popen([*command, "--database-url", f"sqlite:///{OUT}/tinker.db"])
try:
    while True:
        try:
            requests.get(f"{URL}/api/v1/healthz", timeout=1)
            break
        except requests.ConnectionError:
            time.sleep(0.5)
    service = tinker.ServiceClient(base_url=URL, api_key="tml-none")
    train(service.create_lora_training_client(base_model=MODEL, rank=32, seed=int(SEED)))
finally:
    server.terminate()
    server.wait()
