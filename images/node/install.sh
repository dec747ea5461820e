#!/bin/sh
# Runs once, while the image is built.
set -eu
cd "$(dirname "$0")"

apt-get -o Acquire::Languages=none update
# shellcheck disable=SC2046  # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(cat packages.txt)
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log
# Without a base that leaves them out already.
find /usr/share/doc -mindepth 1 ! -type d ! -name copyright -delete
rm -rf /usr/share/man/* /usr/share/info/*
