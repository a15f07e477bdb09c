#!/usr/bin/env bash
# The image agentrl/agents for coding agents in Docker: Python, pytest, git and Node, made by debootstrap without a registry. The
# agents themselves are shown to its sandboxes from where scripts/install_agents.sh puts them. Needs root, a running Docker engine
# and debootstrap (scripts/start_sandboxes.sh). An image that is there already is left as it is.
#
#     scripts/agents_image.sh
set -euo pipefail

docker image inspect agentrl/agents > /dev/null 2>&1 && exit 0
echo "making the image agentrl/agents: about 450 MB, a minute or more" >&2
root="$(mktemp -d)"
trap 'rm -rf "$root"' EXIT
packages=python3,python3-numpy,python3-pytest,git,nodejs,ca-certificates,procps
debootstrap --variant=minbase --include="$packages" bookworm "$root" > /dev/null
tar -C "$root" --exclude='./var/cache/apt/archives/*' --exclude='./var/lib/apt/lists/*' -c . | docker import - agentrl/agents > /dev/null
