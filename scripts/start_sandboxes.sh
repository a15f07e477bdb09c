#!/usr/bin/env bash
# Everything that the sandbox tests need, on a Debian machine without a registry: bubblewrap, a running Docker engine, and the
# default image, whose base is made by debootstrap. Needs root. What is there already is left as it is.
#
#     scripts/start_sandboxes.sh
set -euo pipefail

here="$(cd "$(dirname "$0")/.." && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/agentrl"
packages=()
command -v bwrap > /dev/null || packages+=(bubblewrap)
command -v dockerd > /dev/null || packages+=(docker.io iptables)
command -v debootstrap > /dev/null || packages+=(debootstrap)
command -v g++ > /dev/null || packages+=(g++)
/usr/bin/python3 -c "import pytest" 2> /dev/null || packages+=(python3-pytest) # for sandboxes of an ordinary user
if [ ${#packages[@]} -gt 0 ]; then
    echo "[1/3] installing ${packages[*]}" >&2
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" > /dev/null
fi

if ! docker info > /dev/null 2>&1; then
    echo "[2/3] starting the Docker engine" >&2
    # Files of an engine that was killed: none starts beside them.
    pgrep -x dockerd > /dev/null || rm -f /var/run/docker.pid /var/run/docker/containerd/containerd.pid
    setsid nohup dockerd > /tmp/agentrl-dockerd.log 2>&1 < /dev/null &
    for _ in $(seq 60); do
        docker info > /dev/null 2>&1 && break
        sleep 0.5
    done
    docker info > /dev/null || { tail -20 /tmp/agentrl-dockerd.log >&2; exit 1; }
fi

inside=python3,python3-numpy,python3-pytest,g++
made_of="$(echo "$inside" | cat - "$here/sandboxes/images/Dockerfile" | sha256sum | cut -c 1-12)"
if [ "$(docker image inspect --format '{{index .Config.Labels "agentrl.made_of"}}' agentrl/sandbox 2> /dev/null)" != "$made_of" ]; then
    base="$cache/sandbox-base-$made_of.tar"
    if [ ! -e "$base" ]; then
        echo "[3/3] making the base of the sandbox image: about 450 MB, a minute or more" >&2
        root="$(mktemp -d)"
        trap 'rm -rf "$root"' EXIT
        debootstrap --variant=minbase --include="$inside" bookworm "$root" > /dev/null
        mkdir -p "$cache"
        tar -C "$root" --exclude='./var/cache/apt/archives/*' --exclude='./var/lib/apt/lists/*' -cf "$base.part" .
        mv "$base.part" "$base"
    fi
    docker import "$base" agentrl/sandbox-base > /dev/null
    DOCKER_BUILDKIT=0 docker build --quiet --build-arg BASE=agentrl/sandbox-base --label "agentrl.made_of=$made_of" --tag agentrl/sandbox "$here/sandboxes/images" > /dev/null
fi
