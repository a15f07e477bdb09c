"""Half of the reward is for the answer, half for the program."""

import json
import os
import random
import subprocess
from pathlib import Path


def answer() -> bool:
    try:
        return Path("/srv/data/count.txt").read_text().strip() == "3"
    except OSError:
        return False


def program() -> bool:
    for words in (0, 1, random.randrange(5, 500)):
        text = " \n".join(random.choices(os.environ["ALPHABET"], k=words))
        done = subprocess.run(
            ["python3", "/app/count.py"], input=text, capture_output=True, text=True, timeout=5, check=False
        )
        if done.returncode or done.stdout.strip() != str(words):
            return False
    return True


Path("/logs/verifier/reward.json").write_text(json.dumps({"reward": answer() / 2 + program() / 2}))
