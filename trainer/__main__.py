"""`python -m agentrl.trainer WEIGHTS_DIR`: the trainer's process, which reads commands and answers each in a line."""

import os
import sys
from pathlib import Path

from agentrl.system.this_process import loading

with loading():
    from agentrl.config import RunConfig
    from agentrl.errors import AgentRLError
    from agentrl.trainer.command_loop import TrainerProcess
    from agentrl.trainer.model.ranks import join_ranks


def main() -> None:
    """Answer commands until standard input closes."""
    if len(sys.argv) != 2:
        sys.exit("agentrl: agentrl train starts the trainer by itself: python -m agentrl.trainer WEIGHTS_DIR")
    config = RunConfig.model_validate_json(sys.stdin.readline())
    try:
        # Whatever a library prints must not mix with the answers.
        answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        ranks = join_ranks(config.trainer.step_timeout_s, offload=config.trainer.offload)
    except AgentRLError as error:
        sys.exit(f"agentrl: {error}")
    process = TrainerProcess(config, Path(sys.argv[1]), ranks)
    # Every rank is told every command: waiting for the next one is then no collective, which would have a time limit.
    while line := sys.stdin.readline():
        reply = process.answer(line)
        if ranks.rank == 0:
            answers.write(reply + "\n")
            answers.flush()


if __name__ == "__main__":
    os.umask(0o077)  # checkpoints and weights are for their user alone
    main()
