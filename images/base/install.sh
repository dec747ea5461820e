#!/bin/sh
# Runs once, while the image is built.
set -eu
cd "$(dirname "$0")"

missing=
for package in $(cat packages.txt); do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    apt-get update
    # shellcheck disable=SC2086  # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing
    apt-get clean
    rm -rf /var/lib/apt/lists/*
fi

python3 trust.py ca/*.crt
update-ca-certificates

# Some bases bring a user 1000 of their own (Ubuntu's is called ubuntu).
other=$(getent passwd 1000 | cut -d: -f1)
if [ -n "$other" ] && [ "$other" != agent ]; then userdel --remove "$other" 2>/dev/null; fi
getent group 1000 >/dev/null || groupadd --gid 1000 agent
id agent >/dev/null 2>&1 || useradd --uid 1000 --gid 1000 --create-home --home-dir /home/agent --shell /bin/bash agent
install -d -o 1000 -g 1000 -m 755 /workspace

# An agent installs packages for itself, in its home, where nothing of the system can break.
printf '[global]\nbreak-system-packages = true\n' >/etc/pip.conf

# For want of an index (a network with Debian's mirror alone) the image is made without it; `gamebox setup` repeats the line below.
if ! pip install --quiet --root-user-action=ignore --no-cache-dir --no-deps --require-hashes --only-binary :all: -r requirements.txt; then
    echo "gamebox: uv could not be installed, for no package index answered; the image is made without it"
fi
