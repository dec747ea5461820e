"""Ways out of a sandbox that may reach something, other than to what it may reach."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Network
from tests.servers.authority import Authority
from tests.servers.site import Site

from .reaching import on_a_host_that_asks, talk

pytestmark = pytest.mark.engine

Make = Callable[..., DockerEnvironment]


@pytest.fixture
def secret() -> Iterator[Site]:
    """A service of the host that no sandbox is to reach."""
    with Site({"/": b"secret of the host"}) as site:
        yield site


@pytest.fixture(scope="module")
def opened() -> Iterator[DockerEnvironment]:
    """A sandbox to which everything public is open."""
    with DockerEnvironment(network=Network.open()) as env:
        yield env


DIRECT = """
import os
print(sorted(os.listdir("/sys/class/net")))
print(sum(1 for _ in open("/proc/net/route")) - 1)
tried = 0
for address in ("1.1.1.1", "169.254.169.254", "172.17.0.1", "10.0.0.1", "255.255.255.255", "224.0.0.1"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as s:
            s.settimeout(1); s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1); tried += 1
            try: s.connect((address, 53)); s.send(b"x"); print("REACHED", address, kind)
            except OSError: pass
for address in ("2606:4700:4700::1111", "fd00:ec2::254", "fe80::1%lo", "ff02::1", "::ffff:1.1.1.1"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            with socket.socket(socket.AF_INET6, kind) as s:
                s.settimeout(1); tried += 1
                s.connect(socket.getaddrinfo(address, 53)[0][4]); s.send(b"x"); print("REACHED", address, kind)
        except OSError: pass
for family, kind, protocol in ((2, 3, 1), (2, 3, 255), (10, 3, 58), (17, 3, 0x0300), (17, 2, 0x0300), (40, 1, 0), (2, 5, 132)):
    tried += 1
    try: socket.socket(family, kind, protocol).close(); print("OPENED", family, kind, protocol)
    except OSError: pass
for family, protocol, address in ((2, 1, "1.1.1.1"), (10, 58, "2606:4700:4700::1111")):
    tried += 1
    try:
        with socket.socket(family, 2, protocol) as s:
            s.settimeout(1); s.sendto(b"\\x08\\0\\0\\0\\0\\0\\0\\0", (address, 0)); s.recv(100); print("PINGED", address)
    except OSError: pass
print(tried > 20)
"""


def test_no_way_but_the_proxy(opened: DockerEnvironment) -> None:
    """Threat: packets past the proxy where something is open: direct addresses, IPv6, UDP, raw sockets, ICMP, broadcasts."""
    assert talk(opened, DIRECT) == "['lo']\n0\nTrue\n"


SPELLINGS = [
    "127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0x7F.0.0.0x1", "0177.0.0.1", "017700000001",
    "127.0.0.1.",
    "127.127.127.127", "0.0.0.0", "0", "00", "0x0", "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
    "[::127.0.0.1]", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]", "[::1%25lo]", "[fe80::1%lo]", "localhost", "LOCALHOST",
    "localhost.",
    "ip6-localhost", "①②⑦.⓪.⓪.①", "127。0。0。1", "user@127.0.0.1", "127.0.0.1%00.example.com", "169.254.169.254", "0xa9fea9fe",
    "2852039166", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "168.63.129.16", "100.100.100.200", "metadata.google.internal",
]  # fmt: skip


def test_services_of_the_host_by_every_spelling(opened: DockerEnvironment, secret: Site) -> None:
    """Threat: loopback and metadata of the host, by a spelling or a name that the rules do not see for what it is."""
    own = socket.gethostname()
    source = f"""
for host in {[*SPELLINGS, own]!r}:
    for request in (f"CONNECT {{host}}:{secret.port}", f"GET http://{{host}}:{secret.port}/"):
        answer = status(request + " HTTP/1.1\\r\\n\\r\\n")
        if not answer.startswith(("403 ", "400 ", "502 ")): print(host, answer)
    name = host.strip("[]").encode()
    code = socks(3, bytes([len(name)]) + name, {secret.port})
    if code not in (1, 2, 4): print("SOCKS", host, code)
print([socks(len(raw) // 4, raw, {secret.port}) for raw in (bytes((127, 0, 0, 1)), bytes(15) + b"\\1", bytes(4))])
"""
    assert talk(opened, source) == "[2, 2, 2]\n"
    assert secret.asked == []


def test_the_words_of_a_refusal_name_what_the_address_is(opened: DockerEnvironment) -> None:
    """Threat: none; a model that was refused must learn why, or it tries every spelling."""
    source = 'for host in ("127.0.0.1", "169.254.169.254", "10.0.0.1"): print(status(f"CONNECT {host}:80 HTTP/1.1\\r\\n\\r\\n"))'
    loopback, metadata, private = talk(opened, source).splitlines()
    assert loopback.startswith("403 ")
    assert "a loopback address of the host" in loopback
    assert "cloud metadata" in metadata
    assert "a private address" in private


def test_redirects_are_judged_like_any_request(docker_env: Make, secret: Site) -> None:
    """Threat: a server that may be reached sends the client on to one that may not."""
    with Site() as site:
        # The first three lead to the sandbox's own loopback, where nothing listens: the proxy is not even asked.
        hosts = [
            f"127.0.0.1:{secret.port}",
            f"localhost:{secret.port}",
            f"127.1:{secret.port}",
            "169.254.169.254",
            "10.0.0.1",
        ]
        targets = [f"http://{host}/" for host in hosts]
        site.redirects = {f"/{number}": target for number, target in enumerate(targets)}
        env = docker_env(
            network=Network.allow(f"site.example.com:{site.port}", names={"site.example.com": "127.0.0.1"})
        )
        for number in range(len(targets)):
            ran = env.run(f"curl -sSiL --max-redirs 3 http://site.example.com:{site.port}/{number}").unwrap()
            assert "302 Found" in ran.stdout
            assert ran.exit_code == 7 if number < 3 else "HTTP/1.1 403 " in ran.stdout
            assert "secret of the host" not in ran.output
        assert len(site.asked) == len(targets)
    assert secret.asked == []


def test_another_host_behind_the_allowed_one(docker_env: Make, tmp_path: Path) -> None:
    """Threat: one server of many names (a CDN) is asked for a name that is not allowed.

    A plain request is asked of the host it was judged by, whatever its Host header says. Inside TLS nobody looks: the name in there
    is between the client and that one server (docs/explanation/network.md says so); no other server can be reached by it.
    """
    authority = Authority(tmp_path)
    plain, tls = Site({"/": b"plain"}), Site({"/": b"tls"}, context=authority.context("front.example.com"))
    with plain, tls:
        env = docker_env(
            network=Network.allow(
                f"front.example.com:{plain.port}",
                f"front.example.com:{tls.port}",
                names={"front.example.com": "127.0.0.1"},
            ),
        )
        first = f"http://front.example.com:{plain.port}/"
        assert env.run(f"curl -sS -H 'Host: hidden.example.com' {first}").unwrap().stdout == "plain"
        assert [one.host for one in plain.asked] == [f"front.example.com:{plain.port}"]
        hidden = f"https://hidden.example.com:{tls.port}/"
        went = f"curl -sSk --connect-to hidden.example.com:{tls.port}:front.example.com:{tls.port} {hidden}"
        assert env.run(went).unwrap().stdout == "tls"
        assert [one.host for one in tls.asked] == [f"hidden.example.com:{tls.port}"]
        assert "403" in env.run(f"curl -sSk {hidden}").unwrap().output


ORCHESTRATOR = """
import json, sys
from sandbox import DockerEnvironment, Network
from sandbox.network.ceiling import Ceiling
rules, names = json.loads(sys.argv[1]), json.loads(sys.argv[2])
said = []
box = DockerEnvironment(network=Network.allow(*rules))
if sys.argv[3:]:
    box.ceiling = Ceiling.public(*json.loads(sys.argv[3]))
with box as env:
    for name in names:
        ran = env.run(f"curl -sS --max-time 20 http://{name}/").unwrap()
        env.run(f"getent hosts {name.partition(':')[0]}", timeout_seconds=20)
        said.append(ran.output)
print(json.dumps(said))
"""


def as_script(folder: Path) -> Path:
    script = folder / "orchestrator.py"
    script.write_text(ORCHESTRATOR)
    return script


def test_refused_names_are_not_even_asked_for(tmp_path: Path) -> None:
    """Threat: data leaves in the names that are looked up (DNS tunnels): what no rule names is never resolved, here or inside."""
    answers = {"allowed.example.com": ["127.0.0.1"], "x.wild.example.com": ["127.0.0.1"]}
    names = [
        "c2VjcmV0.evil.example.net",
        "allowed.example.com.evil.example.net",
        "allowed.example.com",
        "x.wild.example.com",
    ]
    rules = ["allowed.example.com", "*.wild.example.com"]
    said, asked = on_a_host_that_asks(answers, as_script(tmp_path), json.dumps(rules), json.dumps(names))
    assert isinstance(said, list)
    assert len(said) == len(names)
    assert all("is refused by the sandbox" in one for one in said), (
        said
    )  # the last two resolve to an address that is closed
    assert {question.split(" ")[1] for question in asked} == {"allowed.example.com", "x.wild.example.com"}


def test_rebinding(tmp_path: Path) -> None:
    """Threat: a name that answers with an allowed address when it is checked and with another when it is dialled."""
    with Site({"/": b"allowed"}, address="127.0.0.2") as site, Site({"/": b"closed"}, address="127.0.0.1") as other:
        rules = [f"rebound.example.com:{site.port}", f"rebound.example.com:{other.port}", f"127.0.0.2:{site.port}"]
        names = [f"rebound.example.com:{site.port}", f"rebound.example.com:{other.port}"]
        answers = {"rebound.example.com": ["127.0.0.2", "127.0.0.1"]}
        said, asked = on_a_host_that_asks(answers, as_script(tmp_path), json.dumps(rules), json.dumps(names))
        assert isinstance(said, list)
        assert said[0] == "allowed"
        assert "127.0.0.1" in said[1]
        assert "an address of the host itself" in said[1]
        assert len(site.asked) == 1
        assert other.asked == []
        assert [one for one in asked if one.startswith("A ")] == ["A rebound.example.com"] * 2  # each resolved once


def test_a_ceiling_holds_against_a_name_server_that_changes_its_answers(tmp_path: Path) -> None:
    """Threat: who writes the rules has a name server as well, and opens with both what is the operator's."""
    with Site({"/": b"opened"}, address="127.0.0.2") as site, Site({"/": b"closed"}, address="127.0.0.3") as other:
        rules = ["*:*", "0.0.0.0/0:*", "[::/0]:*"]
        flips = [f"flips.example.com:{site.port}", f"flips.example.com:{other.port}"]
        hosts = [*flips, f"db.corp.example:{other.port}", "none.corp.example"]
        answers = {"flips.example.com": ["127.0.0.2", "127.0.0.3"], "db.corp.example": ["10.1.2.3"]}
        asked_for = map(json.dumps, (rules, hosts, [f"127.0.0.2:{site.port}"]))
        said, asked = on_a_host_that_asks(answers, as_script(tmp_path), *asked_for)
        assert isinstance(said, list)
        assert said[0] == "opened"
        assert "flips.example.com has no public address, and the operator opens no others" in said[1]
        existing, missing = (one.partition("refused by the sandbox: ")[2].split() for one in said[2:])
        assert existing[1:] == missing[1:], "who asks does not learn which names there are"
        assert (len(site.asked), other.asked) == (1, [])
        assert [one for one in asked if one == "A flips.example.com"] == ["A flips.example.com"] * 2  # each resolved once
