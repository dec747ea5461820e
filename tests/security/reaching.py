"""What hostile code says to the sandbox's proxy, and a host whose resolver is the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sandbox import DockerEnvironment
from sandbox.guest.protocol.constants import PROXY_PORT
from tests.servers.names import name_server

from .probing import probe

# Where the resolver of a test listens: loopback, and no address that anything else uses, a worker of the tests beside it included.
NAME_SERVER = f"127.77.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"

TALK = f"""
import json, socket, struct, sys
def proxy():
    return socket.create_connection(("127.0.0.1", {PROXY_PORT}), timeout=30)
def until(sock, end=b"\\r\\n\\r\\n"):
    data = b""
    while end not in data:
        piece = sock.recv(65536)
        if not piece: break
        data += piece
    return data
def said(request):
    with proxy() as sock:
        sock.sendall(request if isinstance(request, bytes) else request.encode())
        return until(sock)
def status(request):
    line = said(request).split(b"\\r\\n")[0].decode("latin-1")
    return line.split(" ", 1)[1] if line.startswith("HTTP/") else repr(line)
def socks(kind, address, port):
    with proxy() as sock:
        sock.sendall(b"\\x05\\x01\\x00")
        sock.recv(2)
        sock.sendall(b"\\x05\\x01\\x00" + bytes([kind]) + address + struct.pack(">H", port))
        answer = sock.recv(10)
        return answer[1] if len(answer) > 1 else -1
"""


def talk(env: DockerEnvironment, source: str) -> str:
    """What Python ``source`` prints in the sandbox, with the functions of TALK at hand."""
    return probe(env, TALK + source)


def on_a_host_that_asks(
    answers: Mapping[str, Sequence[str]], script: Path, *arguments: str
) -> tuple[object, list[str]]:
    """Run ``script`` as an orchestrator on a host whose only resolver answers this; (the JSON it printed, the questions)."""
    if os.geteuid() != 0:
        pytest.skip("another /etc/resolv.conf in a mount namespace takes root")
    settings = script.with_suffix(".resolv")
    settings.write_text(f"nameserver {NAME_SERVER}\noptions timeout:9 attempts:1\n")
    asked: list[str] = []
    enter = 'mount --bind "$1" /etc/resolv.conf && shift && exec "$@"'
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", enter, "sh", str(settings)]
    root = Path(__file__).parents[2]
    with name_server(answers, asked, NAME_SERVER):
        ran = subprocess.run(
            [*argv, sys.executable, str(script), *arguments],
            capture_output=True, text=True, timeout=120, check=False, cwd=root, env={**os.environ, "PYTHONPATH": str(root)},
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout), asked
