"""The proxy of a sandbox against its own clients: words that are no request, crowds, and those who would take its place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandbox import DockerEnvironment, Network
from sandbox.envelope import Envelope
from sandbox.guest.protocol.constants import PROXY_PORT
from tests.integration.observing import eventually
from tests.servers import sockets
from tests.servers.site import Site

from .reaching import talk

pytestmark = pytest.mark.engine

NAMES = {"site.example.com": "127.0.0.1"}
Make = Callable[..., DockerEnvironment]


@pytest.fixture
def site() -> Iterator[Site]:
    with Site({"/": b"here"}) as made:
        yield made


@pytest.fixture
def allowed(docker_env: Make, site: Site) -> DockerEnvironment:
    """A sandbox that may reach the site and nothing else."""
    return docker_env(network=Network.allow(f"site.example.com:{site.port}", names=NAMES))


def fetch(env: DockerEnvironment, site: Site) -> str:
    return talk(env, f'print(status("GET http://site.example.com:{site.port}/ HTTP/1.1\\r\\n\\r\\n"))')


def own_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


INJECTED = """
site, crlf = "site.example.com:%d", "\\r\\n"
requests = [first + " HTTP/1.1\\r\\n" + rest + "\\r\\n\\r\\n" for first, rest in (
    (f"GET http://{site}/a HTTP/1.1\\nX-Injected: 1", ""), (f"GET http://{site}/b\\rX-Injected: 1", ""),
    (f"GET http://{site}/c", "A: b\\nX-Injected: 1"), (f"GET http://{site}/d", "A: b\\r\\n X-Injected: 1"),
    (f"GET http://{site}/e", "A : b"), (f"GET http://{site}/f", ": b"), (f"GET http://{site}/g", "no colon"),
    (f"GET http://{site}/h\\0", "A: b"), (f"GET http://{site}/i x", "A: b"), (f"G\\tT http://{site}/j", "A: b"),
    (f"CONNECT {site}\\nX: 1", "A: b"), ("CONNECT site.example.com", "A: b"), ("CONNECT site.example.com:0", "A: b"),
    ("CONNECT site.example.com:99999", "A: b"), ("CONNECT :443", "A: b"), ("GET /", f"Host: {site}"),
    (f"GET https://{site}/", "A: b"), ("\\x16\\x03\\x01" + "x" * 100, ""),
)]
for request in requests: print(status(request)[:3])
print(status("CONNECT a.example.com%%0d%%0aX-Injected:1:80 HTTP/1.1\\r\\n\\r\\n")[:3])
answer = said(f"CONNECT {chr(233)}\\x1b[2J\\x07evil.example.com:80 HTTP/1.1\\r\\n\\r\\n".encode())
print(answer[:12], any(byte > 126 or byte < 32 for byte in answer.split(b"\\r\\n")[0]))
for name in (b"x.example.com\\r\\nX-Injected: 1", b"\\xff\\xfe", b"a" * 255, b"\\0"):
    print(socks(3, bytes([len(name)]) + name, 80))
print(status(f"GET http://user:password@{site}/last HTTP/1.1\\r\\nHost: other.example.com\\r\\nHost: third.example.com\\r\\n"
             "Proxy-Authorization: Basic c2VjcmV0\\r\\nConnection: keep-alive, X-Drop\\r\\n\\r\\n")[:3])
"""


def test_requests_made_to_smuggle(allowed: DockerEnvironment, site: Site) -> None:
    """Threat: line ends, NULs and doubled headers that the proxy reads as one request and the server as another."""
    said = talk(allowed, INJECTED % site.port).splitlines()
    assert set(said[:18]) <= {"400"}, said
    assert said[18] in ("400", "403")
    assert said[19] == "b'HTTP/1.1 403' False"
    assert set(said[20:24]) <= {"1", "2"}
    assert said[24] == "404"
    assert [(one.path, one.host) for one in site.asked] == [("/last", f"site.example.com:{site.port}")]
    assert not [name for name in site.asked[0].headers if name.lower().startswith(("proxy", "x-"))]


def test_heads_without_end(allowed: DockerEnvironment, site: Site) -> None:
    """Threat: the guest's memory, or the pipe, by heads and names that never end."""
    source = """
print(status("GET http://site.example.com/ HTTP/1.1\\r\\nA: " + "x" * 100_000)[:3])
print(status("GET http://site.example.com/" + "x" * 100_000 + " HTTP/1.1\\r\\n\\r\\n")[:3])
print(status("\\r\\n" * 100_000)[:3])
for name in ("x" * 254, "x" * 9000, chr(233) * 3000, chr(0xfffd) * 80): print(status(f"CONNECT {name}:80 HTTP/1.1\\r\\n\\r\\n")[:3])
print(socks(3, b"\\xff" + b"\\xff" * 255, 80))
"""
    assert set(talk(allowed, source).split()) <= {"431", "400", "403", "1", "2"}
    assert fetch(allowed, site).startswith("200")


def test_thousands_of_quick_connections(allowed: DockerEnvironment, site: Site) -> None:
    """Threat: descriptors that stay when clients are gone: before they ask, while the host looks, and after."""
    source = f"""
request = b"CONNECT site.example.com:{site.port} HTTP/1.1\\r\\n\\r\\n"
for number in range(4_000):
    with proxy() as sock:
        if number % 2: sock.sendall(request)
        if number % 4 == 1: sock.recv(100)
        if number % 4 == 3: sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
print("done")
"""
    assert fetch(allowed, site).startswith("200")  # what is made once is there
    before = own_descriptors()
    assert talk(allowed, source) == "done\n"
    assert allowed.run("true").ok
    assert eventually(lambda: own_descriptors() <= before + 2, 30), f"{before} descriptors became {own_descriptors()}"
    assert fetch(allowed, site).startswith("200")


def test_crowds_that_say_nothing(allowed: DockerEnvironment, site: Site) -> None:
    """Threat: silent, half-open and slow clients use up the proxy; the guest goes on, and so does the proxy when they are gone."""
    source = """
import time
held = []
for number in range(700):
    try:
        sock = proxy()
        held.append(sock)
        if number % 3 == 1: sock.sendall(b"GET http://site")
        if number % 3 == 2: sock.shutdown(socket.SHUT_WR)
    except OSError as error: print("refused", error)
print("held", flush=True)
time.sleep(1000)
"""
    crowd = allowed.run(argv=["python3", "-c", _talk_source(source)], background=True).unwrap().id
    assert allowed.wait_for(id=crowd, log="held", timeout_seconds=60).ok
    for _ in range(10):
        assert allowed.run("echo works").unwrap().stdout == "works\n"
    allowed.kill(crowd).unwrap()
    assert fetch(allowed, site).startswith("200")


def _talk_source(source: str) -> str:
    from .reaching import TALK

    return TALK + source


def test_readers_that_never_read(docker_env: Make) -> None:
    """Threat: the memory of host and guest, by connections that are opened and whose bytes are never taken, both ways."""

    def deaf(connection: object) -> None:
        import time

        time.sleep(60)
        del connection

    with sockets.tcp_server(sockets.flood) as flooding, sockets.tcp_server(deaf) as unread:
        rules = (f"site.example.com:{flooding}", f"site.example.com:{unread}")
        env = docker_env(network=Network.allow(*rules, names=NAMES))
        assert env.run("true").ok
        before = _resident_bytes()
        source = f"""
import time
held = []
for number in range(200):
    sock = proxy()
    sock.sendall(b"CONNECT site.example.com:%d HTTP/1.1\\r\\n\\r\\n" % ({flooding} if number % 2 else {unread}))
    sock.recv(10)
    sock.setblocking(False)
    held.append(sock)
for _ in range(40):
    for sock in held[::2]:
        try: sock.send(bytes(1 << 20))
        except BlockingIOError: pass
    time.sleep(0.05)
print("held", flush=True)
time.sleep(1000)
"""
        hog = env.run(argv=["python3", "-c", _talk_source(source)], background=True).unwrap().id
        assert env.wait_for(id=hog, log="held", timeout_seconds=100).ok
        assert env.run("echo works", timeout_seconds=20).unwrap().stdout == "works\n"
        grown = _resident_bytes() - before
        print(grown >> 20, "MiB")
        assert grown < 320 << 20, f"{grown >> 20} MiB"
        env.kill(hog).unwrap()
        assert (
            talk(env, f'print(said("CONNECT site.example.com:{unread} HTTP/1.1\\r\\n\\r\\n")[:12])')
            == "b'HTTP/1.1 200'\n"
        )


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


IMPERSONATE = """
import os, signal
for family, address in ((2, "127.0.0.1"), (2, "0.0.0.0"), (10, "::ffff:127.0.0.1"), (10, "::")):
    for option in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            if family == 10: sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            if option is not None: sock.setsockopt(socket.SOL_SOCKET, option, 1)
            try: sock.bind((address, %d)); sock.listen(); print("TAKEN", address, option)
            except OSError: pass
try: os.kill(1, signal.SIGKILL); print("KILLED")
except OSError: pass
os.system("kill -9 -1")
"""


def test_nobody_takes_its_place(allowed: DockerEnvironment, site: Site) -> None:
    """Threat: a process that ends the proxy, or listens in its place and reads what other commands send."""
    assert "TAKEN" not in talk(allowed, IMPERSONATE % PROXY_PORT)
    assert "KILLED" not in talk(allowed, IMPERSONATE % PROXY_PORT)
    assert fetch(allowed, site).startswith("200")


def test_it_listens_before_any_command(docker_env: Make) -> None:
    """Threat: the first command of a sandbox takes the port before the proxy does; also where nothing may be reached."""
    env = docker_env()
    source = f"""
with socket.socket() as sock:
    try: sock.bind(("127.0.0.1", {PROXY_PORT})); print("TAKEN")
    except OSError as error: print(error.errno)
print(status("CONNECT site.example.com:443 HTTP/1.1\\r\\n\\r\\n"))
"""
    assert talk(env, source) == "98\n403 site.example.com:443 is refused by the sandbox: this sandbox has no network\n"


def test_a_silent_client_is_cut_in_time(allowed: DockerEnvironment) -> None:
    """Threat: slow-loris. A client that has not asked within 30 seconds is told so and cut, however it drips."""
    source = """
import time
begun = time.monotonic()
with proxy() as sock:
    sock.settimeout(1)
    data = b""
    while time.monotonic() - begun < 50:
        try:
            sock.send(b"x")
            piece = sock.recv(1000)
            if not piece: break
            data += piece
        except TimeoutError: pass
        except OSError: break
    print(data[:12], 25 < time.monotonic() - begun < 40)
"""
    assert talk(allowed, source) == "b'HTTP/1.1 408' True\n"


REFUSED = """
import threading
def ask():
    for number in range(125):
        try: said(f"CONNECT host{number}.example.com:443 HTTP/1.1\\r\\n\\r\\n")
        except OSError: pass
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
print("begun", flush=True)
for thread in threads: thread.join()
print(status("CONNECT last.example.com:443 HTTP/1.1\\r\\n\\r\\n")[:3])
"""


def test_refusals_without_end(allowed: DockerEnvironment, site: Site) -> None:
    """Threat: each refusal is traced to its command and told: a thousand of them fill the answer, or the guest's time."""
    scan = allowed.run(argv=["python3", "-c", _talk_source(REFUSED)], background=True).unwrap().id
    answers: list[Envelope[Any]] = [allowed.wait_for(id=scan, log="begun", timeout_seconds=60)]
    for _ in range(5):
        answers.append(allowed.run("echo works", timeout_seconds=60))
        assert answers[-1].unwrap().stdout == "works\n"
    answers += [allowed.wait_for(id=scan, exit=True, timeout_seconds=200), allowed.logs(scan), allowed.run("true")]
    assert all(answer.ok for answer in answers)
    assert answers[-2].unwrap().content.endswith("403\n")
    # They come with whatever is answered next: on a busy machine all may be in the answer to the first wait.
    told = [notice.message for answer in answers for notice in answer.notices if notice.code == "network_denied"]
    assert 0 < len(told) <= 10
    # And not to the command whose answer it stands in.
    assert all(f"from the command {scan}" in one for one in told)
    assert fetch(allowed, site).startswith("200")


def test_a_liar_is_not_found_and_nobody_is_accused(allowed: DockerEnvironment) -> None:
    """Threat: a process that cannot be read makes the guest blame another command for what it asked."""
    innocent = allowed.run("exec sleep 1000", background=True).unwrap().id
    source = """
import ctypes
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
print(status("CONNECT hidden.example.com:443 HTTP/1.1\\r\\n\\r\\n")[:3])
"""
    answer = allowed.run(argv=["python3", "-c", _talk_source(source)])
    assert answer.unwrap().stdout == "403\n"
    told = [one.message for one in answer.notices if one.code == "network_denied"]
    assert told
    assert all("hidden.example.com" in one for one in told)
    assert all("or another running command" in one for one in told)
    allowed.kill(innocent).unwrap()
