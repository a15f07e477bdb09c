"""Print pip's settings as variables for uv, which reads none of them: `eval "$(python3 scripts/uv_settings.py)"`. What is set for uv already stays."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys

VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
    "no-index": "UV_NO_INDEX",
    "timeout": "UV_HTTP_TIMEOUT",
}
"""The variable for each of pip's settings."""


def uv_variables(listed: str) -> dict[str, str]:
    """Return the variables for what `pip config list` prints, such as `global.index-url='https://…'`."""
    found = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        if variable := VARIABLES.get(key.rpartition(".")[2]):
            found[variable] = " ".join(ast.literal_eval(value).split())
    if "UV_INDEX" in found:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip does, which takes the best version of all indexes
    return found


if __name__ == "__main__":
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    print(
        *(
            f"export {name}={shlex.quote(value)}"
            for name, value in uv_variables(listed).items()
            if name not in os.environ
        ),
        sep="\n",
    )
