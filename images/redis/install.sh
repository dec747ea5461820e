#!/bin/sh
# Runs once, while the image is built.
set -eu
cd "$(dirname "$0")"

apt-get update
# shellcheck disable=SC2046  # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(cat packages.txt)
apt-get clean
rm -rf /var/lib/apt/lists/*
