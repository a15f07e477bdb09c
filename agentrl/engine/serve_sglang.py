"""Run an SGLang server that ends with its parent. Only the interpreter of SGLang's own environment runs this file.

    python serve_sglang.py --host 127.0.0.1 --port P [any flag of sglang.launch_server]

It prints `listening on P` to standard output once the server answers; what the server prints goes to standard error. It ends,
with all processes of the server, when standard input closes. It needs the standard library and SGLang alone.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import TextIO

POLL_S = 0.1
ANSWER_TIMEOUT_S = 5
END_TIMEOUT_S = 3


def announce(port: int, out: TextIO) -> None:
    """Print the port once the server answers."""
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/model_info", timeout=ANSWER_TIMEOUT_S):
                break
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_S)
    print(f"listening on {port}", file=out, flush=True)


def end_with_stdin() -> None:
    """End this process and all it started when standard input closes. It must lead a process group of its own."""
    while os.read(0, 4096):  # not by `sys.stdin`, whose lock a process that is forked meanwhile would wait for
        pass
    threading.Timer(END_TIMEOUT_S, lambda: os.killpg(0, signal.SIGKILL)).start()
    os.killpg(0, signal.SIGTERM)


def fork_processes() -> None:
    """Have SGLang fork its scheduler and its detokenizer from this process, which has imported what they need.

    It would start an interpreter for each, which imports torch and SGLang again: more than half of what the start of a server on a CPU
    takes. On a GPU it has to, as CUDA does not survive a fork.
    """
    set_start_method = multiprocessing.set_start_method

    def fork(method: str | None, force: bool = False) -> None:
        set_start_method("fork", force=True)

    multiprocessing.set_start_method = fork


def main() -> None:
    """Start the server; returns when it ends."""
    # The folder of this file holds a module named as SGLang's package.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.getcwd()) != here]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    threading.Thread(target=announce, args=(port, out), daemon=True).start()
    threading.Thread(target=end_with_stdin, daemon=True).start()

    from sglang.launch_server import kill_process_tree, load_plugins, prepare_server_args, run_server

    if "--device" in sys.argv and sys.argv[sys.argv.index("--device") + 1] == "cpu":
        fork_processes()
    load_plugins()
    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
