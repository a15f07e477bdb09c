#!/usr/bin/env bash
# Everything that the soak needs beside the package with its extras: SGLang for a CPU, sandboxes, other people's clients and agents, an object store,
# and strace. On a Debian machine, as root. What is there already is left as it is.
#
#     scripts/install_soak.sh
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
"$here/install_sglang_cpu.sh"
"$here/start_sandboxes.sh"
packages=()
command -v strace > /dev/null || packages+=(strace) # for tests of what a power cut does
if [ ${#packages[@]} -gt 0 ]; then
    echo "Installing ${packages[*]}" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" > /dev/null
fi
"$here/install_agents.sh"
"$here/agents_image.sh"
"$here/install_clients.sh"
