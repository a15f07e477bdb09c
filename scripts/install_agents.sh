#!/usr/bin/env bash
# The agents and SDKs that workflows/harness.py, tests/proxy/test_agents.py and others run, unmodified, in exact versions. What is there already is left as it is.
#
#     scripts/install_agents.sh
set -euo pipefail

folder="${XDG_CACHE_HOME:-$HOME/.cache}/agentrl/agents"
packages=(
    @ai-sdk/anthropic@3.0.140
    @ai-sdk/openai@3.0.141
    @anthropic-ai/claude-code@2.1.197
    @anthropic-ai/sdk@1.13.0
    @openai/codex@0.169.0
    ai@6.0.326
    openai@6.49.0
    opencode-ai@1.18.33
    zod@4.6.7
)
if [ "$(cat "$folder/installed" 2> /dev/null)" = "${packages[*]}" ]; then
    exit 0
fi
if ! command -v npm > /dev/null; then
    echo "[1/2] installing npm" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm > /dev/null
fi
echo "[2/2] installing ${packages[*]} in $folder" >&2
mkdir -p "$folder"
npm install --prefix "$folder" --save-exact --no-audit --no-fund --loglevel=error "${packages[@]}" >&2
echo "${packages[*]}" > "$folder/installed"
