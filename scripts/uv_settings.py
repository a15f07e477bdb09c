"""Print pip's settings as the variables that give uv the same, as uv reads none of them: `eval "$(python3 scripts/uv_settings.py)"`.

A variable of uv's that is set already stays as it is.
"""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys

OF_UV = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "constraint": ("UV_CONSTRAINT", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
}
"""The variable for each of pip's settings, and what stands between its values."""
SECTIONS = ("global", "install", ":env:")
"""Where pip has settings of an installation, those that win last."""


def settings(listed: str) -> dict[str, str]:
    """The variables for what `pip config list` says."""
    found: dict[str, str] = {}
    lines = [line.partition("=") for line in listed.splitlines()]
    for section in SECTIONS:
        for key, _, value in lines:
            if key.rpartition(".")[0] == section and (variable := OF_UV.get(key.rpartition(".")[2])):
                name, between = variable
                found[name] = between.join(ast.literal_eval(value).split())
    if "UV_INDEX" in found:  # pip takes the best version of all indexes
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return found


def main() -> None:
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    for name, value in settings(done.stdout).items():
        if name not in os.environ:
            print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
