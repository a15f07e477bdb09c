#!/usr/bin/env bash
# The Python clients that tests/proxy/test_python_clients.py runs, unmodified, in exact versions, in a virtual environment of their own: their pins are not agentrl's.
# scripts/clients_versions.txt names them and all that they need. What is there already is left as it is.
#
#     scripts/install_clients.sh
set -euo pipefail

folder="${XDG_CACHE_HOME:-$HOME/.cache}/agentrl/clients"
versions="$(cd "$(dirname "$0")" && pwd)/clients_versions.txt"
if cmp --silent "$versions" "$folder/installed"; then
    exit 0
fi
python="${PYTHON:-$(command -v python3.11 || command -v python3)}"
echo "Installing Python clients in $folder: about 800 MB" >&2
rm -rf "$folder"
"$python" -m venv "$folder"
# uv installs faster; where there is none, pip does. Every version is named, so nothing is looked for beside them.
if command -v uv > /dev/null; then
    uv pip install --quiet --no-deps --python "$folder/bin/python" --requirement "$versions"
else
    "$folder/bin/python" -m pip install --quiet --quiet --disable-pip-version-check --no-deps --requirement "$versions"
fi
cp "$versions" "$folder/installed"
