"""`python -m agentrl.trainer RUN_DIR WEIGHTS_DIR [CONFIG]`; see `agentrl.trainer.process`."""

from agentrl.machine.garbage import loading

with loading():
    from agentrl.trainer.process import main

if __name__ == "__main__":
    main()
