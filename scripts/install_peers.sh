#!/usr/bin/env bash
# The programs that benchmarks/peers/ runs beside agentrl: each in an environment of its own, in exact versions and for a CPU. 4 GB.
# What no index has is taken from its repository at the commit named. What is there already is left as it is.
#
#     scripts/install_peers.sh [NAME...]
set -euo pipefail

here="$(cd "$(dirname "$0")" && pwd)"
python="${PYTHON:-$(command -v python3.11 || command -v python3)}"
peers="${XDG_CACHE_HOME:-$HOME/.cache}/agentrl/peers"
torch=torch==2.13.0 # the version with a build without CUDA
uv="$(PYTHON="$python" "$here/install_uv.sh")"
eval "$("$python" "$here/uv_settings.py")"

# install NAME PACKAGE...
install() {
    local folder="$peers/$1"
    echo "installing ${*:2} in $folder" >&2
    rm -rf "$folder/bin" "$folder/lib" "$folder/installed"
    "$uv" venv --quiet --allow-existing --python "$python" "$folder"
    "$uv" pip install --quiet --python "$folder/bin/python" "${@:2}"
    echo "${*:2}" > "$folder/installed"
}

# source_of NAME REPOSITORY COMMIT FOLDER: leaves FOLDER of the repository in NAME/source
source_of() {
    local folder="$peers/$1/source"
    rm -rf "$folder"
    mkdir -p "$peers/$1"
    git clone --quiet --no-checkout --filter=blob:none "https://github.com/$2" "$folder"
    git -C "$folder" sparse-checkout set "$4"
    git -C "$folder" -c advice.detachedHead=false checkout --quiet "$3"
}

for name in "${@:-verifiers-0.1 inspect-ai litellm agentlightning rllm-model-gateway verl open-instruct livecodebench trl skyrl-tx}"; do
    for name in $name; do
        [ -e "$peers/$name/installed" ] && continue
        case "$name" in
            verifiers-0.1) install "$name" verifiers==0.1.14 "$torch" ;;
            inspect-ai) install "$name" inspect-ai==0.3.285 openai==3.57.0 ;;
            litellm) install "$name" "litellm[proxy]==1.108.7" ;; # 1.110.2 wants a package that no index had
            agentlightning) install "$name" agentlightning==0.3.0 "$torch" ;;
            rllm-model-gateway)
                source_of "$name" rllm-org/rllm 9beb6e0f676a46d38858991fd79ac5f8e0b16d4c rllm-model-gateway
                install "$name" "$peers/$name/source/rllm-model-gateway" "$torch"
                ;;
            trl) install "$name" trl==1.16.0 transformers==5.24.0 accelerate==1.15.0 datasets==5.2.0 "$torch" ;;
            # The server knows no newer client: 0.38 asks it for /client/config.
            skyrl-tx) install "$name" "skyrl-tx[tinker]==0.3.0" jax==0.8.3 flax==0.12.6 "optax>=0.2.5" tinker==0.13.1 requests "$torch" ;;
            # Its grader alone: all of it takes CUDA.
            verl) install "$name" --no-deps verl==0.9.1 numpy==2.4.6 ;;
            open-instruct)
                source_of "$name" allenai/open-instruct e6c3044aa6201c8bfa4573c1b03142af599e730d open_instruct
                install "$name" fastapi==0.165.0 uvicorn==0.54.0
                ;;
            livecodebench)
                source_of "$name" LiveCodeBench/LiveCodeBench 28fef95ea8c9f7a547c8329f2cd3d32b92c1fa24 lcb_runner
                install "$name" numpy==2.4.6 tqdm==4.70.1
                ;;
        esac
    done
done
