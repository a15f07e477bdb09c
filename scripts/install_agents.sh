#!/usr/bin/env bash
# The agents and SDKs that workflows/harness.py, tests/proxy/test_agents.py and others run, unmodified, in exact versions. What is there already is left as it is.
#
#     scripts/install_agents.sh
set -euo pipefail

folder="${XDG_CACHE_HOME:-$HOME/.cache}/agentrl/agents"
packages=(
    @ai-sdk/anthropic@3.0.140
    @ai-sdk/google@3.0.141
    @ai-sdk/openai@3.0.141
    @anthropic-ai/claude-code@2.1.197
    @anthropic-ai/sdk@1.13.0
    @google/gemini-cli@0.61.0
    @google/genai@3.3.0
    @openai/codex@0.169.0
    ai@6.0.326
    node@22.23.3 # for those in a container of an older Debian: Gemini CLI wants 20
    openai@6.49.0
    opencode-ai@1.18.33
    zod@4.6.7
)
agent_sdk=@anthropic-ai/claude-agent-sdk@0.3.331
python_agent=mini-swe-agent==2.4.6
if [ "$(cat "$folder/installed" 2> /dev/null)" = "${packages[*]} $agent_sdk $python_agent" ]; then
    exit 0
fi
if ! command -v npm > /dev/null; then
    echo "[1/3] installing npm" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm > /dev/null
fi
echo "[2/3] installing ${packages[*]} in $folder" >&2
mkdir -p "$folder/bin"
npm install --prefix "$folder" --save-exact --no-audit --no-fund --loglevel=error "${packages[@]}" >&2
# In a folder of its own, where npm can leave out its second copy of Claude Code (380 MB); Node finds what else it needs in the folder above.
npm install --prefix "$folder/claude-agent-sdk" --omit=optional --legacy-peer-deps --save-exact --no-audit --no-fund --loglevel=error "$agent_sdk" >&2
# Of Debian's Python, as sandboxes have that one at the same place; a program that starts it from where the folder is shown.
echo "[3/3] installing $python_agent in $folder" >&2
rm -rf "$folder/python"
/usr/bin/python3 -m venv --without-pip "$folder/python"
python3 -m pip --python "$folder/python/bin/python3" install --quiet --disable-pip-version-check "$python_agent" >&2
cat > "$folder/bin/mini" << 'END'
#!/bin/sh
exec "$(dirname "$0")/../python/bin/python3" -m minisweagent.run.mini "$@"
END
chmod +x "$folder/bin/mini"
echo "${packages[*]} $agent_sdk $python_agent" > "$folder/installed"
