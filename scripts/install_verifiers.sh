#!/usr/bin/env bash
# Installs verifiers 0.4 into a virtual environment of its own, where `verifiers:` tasks find it: it wants an older openai than agentrl.
# Environments go there too: ~/.cache/agentrl/verifiers-0.4/bin/pip install the-environment
#
#     scripts/install_verifiers.sh
set -euo pipefail

target="$HOME/.cache/agentrl/verifiers-0.4"
[ -e "$target/installed" ] && exit 0
"${PYTHON:-$(command -v python3.11 || command -v python3)}" -m venv "$target"
"$target/bin/python" -m pip install --quiet --disable-pip-version-check 'verifiers>=0.4,<0.5' >&2
touch "$target/installed"
