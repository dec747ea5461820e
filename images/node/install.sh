#!/bin/sh
# Runs once, while the image is built.
set -eu
cd "$(dirname "$0")"

apt-get -o Acquire::Languages=none update
# shellcheck disable=SC2046  # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(cat packages.txt)
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log
# What nobody reads here: documentation, in a base that does not leave it out, and what explains the packed files of npm's libraries.
find /usr/share/doc -mindepth 1 ! -type d ! -name copyright -delete
rm -rf /usr/share/man/* /usr/share/info/*
find /usr/share/nodejs -type f \( -name '*.map' -o -name '*.d.ts' \) -delete
