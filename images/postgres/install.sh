#!/bin/sh
# Runs once, while the image is built.
set -eu
cd "$(dirname "$0")"

apt-get update
# Without a cluster of Debian's own: it would belong to another user, and the root file system is read-only.
mkdir -p /etc/postgresql-common
echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(cat packages.txt)
apt-get clean
rm -rf /var/lib/apt/lists/*

install -m 755 gamebox-postgres.sh /usr/local/bin/gamebox-postgres
# The programs of the server are not on the PATH in Debian.
for program in /usr/lib/postgresql/*/bin/*; do
    [ -e "/usr/local/bin/$(basename "$program")" ] || ln -s "$program" /usr/local/bin/
done
