#!/bin/sh
# Runs once, while the image is built.
set -eu
cd "$(dirname "$0")"

apt-get update
# shellcheck disable=SC2046  # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(cat packages.txt)
apt-get clean
rm -rf /var/lib/apt/lists/*

# Pages are read in one language, and nothing here can use a graphics card.
find /usr/lib/chromium/locales /usr/share/chromium/locales -name '*.pak' ! -name 'en-US.pak' -delete 2>/dev/null || true
rm -f /usr/lib/chromium/libVkLayer_khronos_validation.so /usr/lib/chromium/libVkLayer_khronos_validation.so.TOC
# The list of fonts, which Chromium would else make at each start: the system is read-only in a sandbox.
fc-cache -s

# Chromium asks neither the system's bundle nor a variable for certificates: those that the base trusts beside the usual ones.
python3 policies.py
