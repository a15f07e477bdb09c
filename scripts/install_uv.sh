#!/usr/bin/env bash
# Says where uv is, which installs in seconds what takes pip minutes; where there is none, it is installed in ~/.cache/agentrl/uv.
#
#     uv="$(scripts/install_uv.sh)"
set -euo pipefail

python="${PYTHON:-$(command -v python3.11 || command -v python3)}"
folder="${XDG_CACHE_HOME:-$HOME/.cache}/agentrl/uv"
command -v uv && exit 0
if ! [ -x "$folder/bin/uv" ]; then
    "$python" -m venv "$folder" >&2
    "$folder/bin/python" -m pip install --quiet --quiet --disable-pip-version-check uv==0.13.9 >&2
fi
echo "$folder/bin/uv"
