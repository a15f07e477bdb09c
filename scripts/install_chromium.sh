#!/usr/bin/env bash
# Chromium, Debian's package, which the tests of the viewer's page drive. Needs root where there is none yet.
#
#     scripts/install_chromium.sh
set -euo pipefail

command -v chromium > /dev/null && exit 0
echo "installing Chromium: 0.4 GB on the disk" >&2
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null
