#!/usr/bin/env bash
# Installs the systems of benchmarks/peers, each in an environment of its own under ~/.cache/agentrl/peers, in exact versions and for a CPU. What is there already is left as it is.
#
#     scripts/install_peers.sh trl skyrl-tx
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-$(command -v python3.11 || command -v python3)}"
uv="$(PYTHON="$python" "$here/install_uv.sh")"
eval "$("$python" "$here/uv_settings.py")"
for name in "$@"; do
    case "$name" in
    trl) packages=(trl==1.16.0 transformers==5.24.0 accelerate==1.15.0 datasets==5.2.0) ;;
    # The server knows no newer client: 0.38 asks it for /client/config.
    skyrl-tx) packages=('skyrl-tx[tinker]==0.3.0' jax==0.8.3 flax==0.12.6 'optax>=0.2.5' tinker==0.13.1 requests) ;;
    *) echo "no such peer: $name; trl or skyrl-tx" >&2 && exit 2 ;;
    esac
    folder="$HOME/.cache/agentrl/peers/$name"
    printf '%s\n' "${packages[@]}" | cmp --silent - "$folder/installed" && continue
    echo "Installing $name in $folder: 1 GB" >&2
    rm -rf "$folder"
    "$uv" venv --quiet --python "$python" "$folder"
    "$uv" pip install --quiet --python "$folder/bin/python" torch==2.13.0 "${packages[@]}"
    printf '%s\n' "${packages[@]}" > "$folder/installed"
done
