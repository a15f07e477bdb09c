#!/usr/bin/env bash
# Installs SGLang 0.5.23 for a CPU into a virtual environment of its own, for the tests and for `make quickstart ENGINE=sglang`.
# Its pins differ from agentrl's, so the two never share an environment. A second call with nothing changed does nothing.
#
#     scripts/install_sglang_cpu.sh [DIRECTORY]     default: ~/.cache/agentrl/sglang-0.5.23-cpu
#
# SGLang declares the CUDA build of everything: its own package and those it only probes by import are installed without
# their dependencies, and the ones that it uses on a CPU are named here.
set -euo pipefail

target="${1:-${XDG_CACHE_HOME:-$HOME/.cache}/agentrl/sglang-0.5.23-cpu}"
here="$(cd "$(dirname "$0")" && pwd)"
stamp="$target/installed-by-$(cat "$here/install_sglang_cpu.sh" "$here/sglang_cpu_constraints.txt" | sha256sum | cut -c1-16)"
[ -e "$stamp" ] && exit 0

python="${PYTHON:-$(command -v python3.11 || command -v python3)}"
echo "Installing SGLang 0.5.23 (CPU) into $target: about 1 GB" >&2
step() { echo "[$1/4] $2" >&2; }
rm -rf "$target"
"$python" -m venv "$target"
pip() {
    "$target/bin/python" -m pip install --quiet --quiet --no-warn-conflicts --disable-pip-version-check \
        --constraint "$here/sglang_cpu_constraints.txt" "$@"
}

step 1 "torch, the largest part"
pip torch==2.13.0
step 2 "SGLang"
pip --no-deps sglang==0.5.23
step 3 "about 50 packages that SGLang uses on a CPU"
pip torch==2.13.0 transformers==5.19.0 blobfile==3.0.0 openai-harmony==0.0.4 'llguidance>=1.7.6,<2' \
    aiohttp apache-tvm-ffi cffi datasets distro einops fastapi gguf interegular IPython loguru mistral_common msgspec ninja \
    numpy nvidia-ml-py openai orjson packaging partial_json_parser pillow prometheus-client psutil py-spy pybase64 pydantic \
    pydantic-settings python-dateutil python-multipart pyzmq regex requests scipy sentencepiece setproctitle tiktoken \
    uvicorn uvloop watchfiles xxhash zstandard
step 4 "packages that it only looks for"
pip --no-deps xgrammar==0.2.7 outlines==0.1.11 kernels==0.14.1 compressed-tensors==0.18.0 torchvision==0.28.0 anthropic easydict soundfile timm triton vllm

packages="$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
# torchvision has no CPU build. Its Python part works, but for this file, which describes compiled operators that are not there.
: > "$packages/torchvision/_meta_registrations.py"

# SGLang's LoRA in plain torch asks for page-locked memory, which needs a GPU's driver.
lora="$packages/sglang/srt/lora"
sed -i 's/pin_memory=True/pin_memory=False/; s/\.pin_memory()//' "$lora/layers.py" "$lora/backend/torch_backend.py"

"$target/bin/python" -c 'import sglang.launch_server, sglang.srt.models.qwen3'
touch "$stamp"
