"""Ways to an engine beside its socket: TCP with TLS, and ssh to a server on loopback, with certificates and keys made for it."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import trustme

from tests.integration.observing import eventually

_SSH_SECONDS = 20.0
_SSHD = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {base}/ssh/host
AuthorizedKeysFile {base}/ssh/authorized
PidFile none
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
UsePAM no
MaxStartups 100
MaxSessions 100
"""
_CLIENT = """\
Host 127.0.0.1
    IdentityFile {base}/ssh/user
    IdentitiesOnly yes
    UserKnownHostsFile {base}/ssh/known
    StrictHostKeyChecking yes
"""


def listen() -> socket.socket:
    """Return a listening socket of the host's network, which an engine takes over."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


def write_certificates(base: Path) -> None:
    """Write an authority, and what the engine and its client show each other."""
    folder = base / "tls"
    folder.mkdir()
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("client@example.com")
    for cert, name, key in ((server, "server", "server-key"), (client, "cert", "key")):
        cert.private_key_pem.write_to_path(str(folder / f"{key}.pem"))
        cert.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))


def by_tls(base: Path, listener: socket.socket) -> Mapping[str, str]:
    """Return the variables that name the engine behind a listening socket."""
    port = listener.getsockname()[1]
    return {"DOCKER_HOST": f"tcp://127.0.0.1:{port}", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(base / "tls")}


@contextmanager
def by_ssh(base: Path, inside: int) -> Iterator[Mapping[str, str]]:
    """Run an ssh server in the engine's root file system, on loopback of the host's network; yield the variables that name it.

    ``inside`` is a process there.
    """
    folder = base / "ssh"
    folder.mkdir()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "sshd_config").write_text(_SSHD.format(base=base, port=port))
    (folder / "config").write_text(_CLIENT.format(base=base))
    # Its own ssh, which differs from the user's in its configuration alone.
    (folder / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
    (folder / "ssh").chmod(0o755)
    enter = ["nsenter", "--target", str(inside), "--mount", "sh", "-c"]
    script = f"mkdir -p /run/sshd; ln -sfn {base}/engine.sock /run/docker.sock; exec /usr/sbin/sshd -D -e -f {folder}/sshd_config"
    with (base / "sshd.log").open("wb") as log:
        server = subprocess.Popen([*enter, script], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        if not eventually(lambda: _greets(port) or server.poll() is not None, _SSH_SECONDS) or server.poll() is not None:
            raise RuntimeError(f"the ssh server does not start: {(base / 'sshd.log').read_text()[-1000:]}")
        yield {"DOCKER_HOST": f"ssh://root@127.0.0.1:{port}", "PATH_BEFORE": str(folder)}
    finally:
        server.terminate()
        server.wait(10)


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as visitor:
            return visitor.recv(4) == b"SSH-"
    except OSError:
        return False
