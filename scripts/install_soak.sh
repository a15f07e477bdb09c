#!/usr/bin/env bash
# Everything that the soak needs beside the package with its extras: SGLang for a CPU, sandboxes, Chromium with axe, other people's clients and agents, an object store,
# and strace. On a Debian machine, as root. What is there already is left as it is.
#
#     scripts/install_soak.sh
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
"$here/install_sglang_cpu.sh"
"$here/install_verifiers.sh"
"$here/start_sandboxes.sh"
"$here/install_chromium.sh"
packages=()
command -v strace > /dev/null || packages+=(strace) # for tests of what a power cut does
if [ ${#packages[@]} -gt 0 ]; then
    echo "Installing ${packages[*]}" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" > /dev/null
fi
"$here/install_agents.sh"
# What finds faults of the viewer's page for readers who do not see it, or use no mouse.
axe="${XDG_CACHE_HOME:-$HOME/.cache}/agentrl/axe"
[ -e "$axe/node_modules/axe-core/axe.min.js" ] || npm install --prefix "$axe" --no-audit --no-fund --loglevel=error axe-core@4.14.1 >&2
"$here/agents_image.sh"
"$here/install_clients.sh"
