#!/usr/bin/env bash
# The Python clients that tests/proxy/test_python_clients.py runs, unmodified, in exact versions, in virtual environments of their own: their pins are not agentrl's.
# There are two, since some need a version of the openai package that others refuse; a file for each names all that is in it. What is there already is left as it is.
#
#     scripts/install_clients.sh
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-$(command -v python3.11 || command -v python3)}"
for name in clients_of_openai_2 clients_of_openai_3; do
    folder="${XDG_CACHE_HOME:-$HOME/.cache}/agentrl/$name"
    versions="$here/$name.txt"
    if cmp --silent "$versions" "$folder/installed"; then
        continue
    fi
    echo "Installing Python clients in $folder: about 500 MB" >&2
    rm -rf "$folder"
    "$python" -m venv "$folder"
    # uv installs faster; where there is none, pip does. Every version is named, so nothing is looked for beside them.
    if command -v uv > /dev/null; then
        uv pip install --quiet --no-deps --python "$folder/bin/python" --requirement "$versions"
    else
        "$folder/bin/python" -m pip install --quiet --quiet --disable-pip-version-check --no-deps --requirement "$versions"
    fi
    cp "$versions" "$folder/installed"
done
