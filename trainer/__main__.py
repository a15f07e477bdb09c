"""`python -m agentrl.trainer WEIGHTS_DIR`; see `agentrl.trainer.command_loop`."""

import os

from agentrl.system.this_process import loading

with loading():
    from agentrl.trainer.command_loop import main

if __name__ == "__main__":
    os.umask(0o077)  # checkpoints and weights are for their user alone
    main()
