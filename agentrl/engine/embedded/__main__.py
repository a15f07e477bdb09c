"""The embedded server: SGLang's native HTTP subset on one small model, for laptops, tests and the quickstart.

`python -m agentrl.engine.embedded --model-path M --port P` speaks the request and reply JSON of SGLang 0.5.23 for
`/generate`, `/abort_request`, `/pause_generation`, `/continue_generation`, `/update_weights_from_disk`,
`/load_lora_adapter`, `/unload_lora_adapter`, `/health`, `/model_info` and `/server_info`, and one call of its own,
`/prepare_weights`. Streams hold new tokens only. It prints `listening on PORT` once it serves.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
from contextlib import suppress
from pathlib import Path

from agentrl.system.this_process import loading


def main() -> None:
    """Run the command line of this module; its flags are named as SGLang's."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.engine.embedded", description=__doc__)
    parser.add_argument("--model-path", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--max-total-tokens", type=int, default=65_536, help="size of the KV cache")
    parser.add_argument("--threads", type=int, default=1, help="threads of one forward pass")
    parser.add_argument("--random-seed", type=int, default=0)
    parser.add_argument("--exit-with-stdin", action="store_true", help="stop when standard input closes")
    args = parser.parse_args()
    if args.exit_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    with loading():
        import torch

        from agentrl.engine.embedded.batching import BatchingEngine
        from agentrl.engine.embedded.server import serve
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.random_seed)
    engine = BatchingEngine(args.model_path, max_total_tokens=args.max_total_tokens)
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(engine, args))


def _end_with_stdin() -> None:
    """End this process when standard input closes, also while it still loads: it has nothing to put away."""
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
