#!/usr/bin/env bash
# The Python clients that tests/proxy/test_python_clients.py runs, unmodified, in exact versions, in virtual environments of their own: their pins are not agentrl's.
# The object store of tests/run/test_checkpoint_url.py, moto, and the collector of tests/run/test_traced_runs.py, phoenix, are among them, and so are the trackers of tests/tracking/test_other_trackers.py. There are several, since some need a version of a package that others refuse; a file for each names all that is in it. What is there already is left as it is.
#
#     scripts/install_clients.sh
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-$(command -v python3.11 || command -v python3)}"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/agentrl"
uv="$(PYTHON="$python" "$here/install_uv.sh")"
for name in clients_of_openai_2 clients_of_openai_3 clients_more clients_aider moto phoenix trackers; do
    folder="$cache/$name"
    versions="$here/$name.txt"
    if cmp --silent "$versions" "$folder/installed"; then
        continue
    fi
    echo "Installing Python clients in $folder: 200 to 1,000 MB" >&2
    rm -rf "$folder"
    "$python" -m venv --without-pip "$folder"
    # Every version is named, so nothing is looked for beside them.
    "$uv" pip install --quiet --no-deps --python "$folder/bin/python" --requirement "$versions"
    cp "$versions" "$folder/installed"
done
