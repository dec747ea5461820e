"""Tools as they are, through the proxy, with an allow list of just their hosts; and what each says when its host is not on it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import docker
import pytest

from sandbox import DockerEnvironment, Network
from sandbox.envelope import Success
from sandbox.operations.commands import RunResult
from tests.servers import git, sockets
from tests.servers.authority import Authority
from tests.servers.packages import cargo_registry, debian_repository, go_proxy, npm_package, python_index
from tests.servers.site import Site

from .made_images import remove_image
from .node_image import node_image
from .own_engine import lacking

pytestmark = pytest.mark.engine

Make = Callable[..., DockerEnvironment]
# A real package and all it needs, which are installed where the tests run.
PACKAGES = ["rich", "markdown-it-py", "mdurl", "pygments"]
# A refused tool is to end by itself long before this.
SOON_SECONDS = 30


class Place:
    """Servers under names of their own, on this host's loopback."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.sites: dict[str, Site] = {}
        self.stack = ExitStack()

    def add(self, name: str, tls: bool = True, handler: type | None = None) -> Site:
        """A site NAME.example.com."""
        context = self.authority.context(f"{name}.example.com") if tls else None
        self.sites[name] = self.stack.enter_context(Site(context=context, handler=handler))
        return self.sites[name]

    def url(self, name: str, scheme: str = "https") -> str:
        return f"{scheme}://{name}.example.com:{self.sites[name].port}"

    def network(self, *names: str) -> Network:
        """Just these; every other name is known, and refused."""
        known = {f"{name}.example.com": "127.0.0.1" for name in self.sites}
        return Network.allow(*(f"{name}.example.com:{self.sites[name].port}" for name in names), names=known)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    with made.stack:
        yield made


def refused(env: DockerEnvironment, command: str, host: str) -> str:
    """The output of a command that is refused its host: in time, in words, and told in a notice."""
    begun = time.monotonic()
    answer = env.run(command, timeout_seconds=SOON_SECONDS * 2)
    assert time.monotonic() - begun < SOON_SECONDS, answer.to_text()
    assert isinstance(answer, Success), answer.to_text()
    assert answer.result.exit_code != 0
    told = [notice.message for notice in answer.notices if notice.code == "network_denied"]
    assert any(host in message for message in told), answer.to_text()
    assert [one.host for one in env.connections if one.outcome == "denied"][-1] == host
    return str(answer.result.output)


def ran(env: DockerEnvironment, command: str) -> RunResult:
    """What a command gave that worked."""
    found = env.run(command, timeout_seconds=120).unwrap()
    assert found.exit_code == 0, found.output
    return found


def test_pip(docker_env: Make, place: Place) -> None:
    index, files = place.add("index"), place.add("files")
    index.files, files.files = python_index(PACKAGES, place.url("files"))
    env = docker_env(network=place.network("index", "files"), ca_bundle=place.authority.bundle)
    install = f"pip install --quiet --no-cache-dir --index-url {place.url('index')}/simple rich"
    ran(env, install)
    assert ran(env, "echo '* word' | python3 -m rich.markdown -").stdout.strip() == "• word"
    assert len([one for one in files.asked if one.path.endswith(".whl")]) >= len(PACKAGES)
    env.network = place.network("index")
    ran(env, "pip uninstall --quiet --yes rich")
    said = refused(env, install, "files.example.com")
    assert "403" in said
    env.network = Network.none()
    assert "no network" in refused(env, install, "index.example.com")


@pytest.fixture
def node(client: docker.DockerClient) -> Iterator[str]:
    made = node_image(client, "gamebox/base")
    yield made
    remove_image(client, made)


def test_npm(node: str, docker_env: Make, place: Place) -> None:
    registry = place.add("npm")
    program = "module.exports = () => 'from npm'"
    registry.files = npm_package("small-note", "1.2.3", {"index.js": program}, place.url("npm"))
    env = docker_env(node, network=place.network("npm"), ca_bundle=place.authority.bundle)
    install = f"npm install --no-audit --no-fund --registry {place.url('npm')} small-note"
    ran(env, install)
    assert ran(env, "node -e 'console.log(require(\"small-note\")())'").stdout == "from npm\n"
    env.network = place.network()
    ran(env, "rm -rf node_modules package-lock.json && npm cache clean --force")
    assert "403" in refused(env, install, "npm.example.com")


def test_apt_get(docker_env: Make, place: Place, tmp_path: Path) -> None:
    repository = place.add("apt", tls=False)
    repository.files = debian_repository(tmp_path / "deb", "small-note", "1.0", "#!/bin/sh\necho from apt\n")
    env = docker_env(profile="root", network=place.network("apt"))
    source = f"deb [trusted=yes] {place.url('apt', 'http')} ./"
    ran(env, f"rm -f /etc/apt/sources.list.d/*; echo '{source}' > /etc/apt/sources.list")
    ran(env, "apt-get -qq update && apt-get -qq install -y small-note")
    assert ran(env, "small-note").stdout == "from apt\n"
    env.network = place.network()
    said = refused(env, "rm -rf /var/lib/apt/lists/*; apt-get update -o APT::Update::Error-Mode=any", "apt.example.com")
    assert "403" in said


def test_apt_get_over_https(docker_env: Make, place: Place, tmp_path: Path) -> None:
    repository = place.add("apt")
    repository.files = debian_repository(tmp_path / "deb", "small-note", "1.0", "#!/bin/sh\necho from apt\n")
    env = docker_env(profile="root", network=place.network("apt"), ca_bundle=place.authority.bundle)
    source = f"deb [trusted=yes] {place.url('apt')} ./"
    ran(env, f"rm -f /etc/apt/sources.list.d/*; echo '{source}' > /etc/apt/sources.list")
    ran(env, "apt-get -qq update && apt-get -qq install -y small-note && small-note")


def test_git(docker_env: Make, place: Place, tmp_path: Path) -> None:
    git.repository(tmp_path / "served", {"read.me": "from git\n"})
    place.add("git", handler=git.handler(tmp_path / "served"))
    env = docker_env(network=place.network("git"), ca_bundle=place.authority.bundle)
    url = f"{place.url('git')}/project.git"
    ran(env, f"git clone -q {url}")
    assert ran(env, "cat project/read.me").stdout == "from git\n"
    big = "head -c 3000000 /dev/urandom > big && git add big && git -c user.name=x -c user.email=x@example.com commit -qm big"
    ran(env, f"cd project && {big} && git -c http.postBuffer=10000000 push -q origin HEAD:refs/heads/more")
    env.network = place.network()
    assert "403" in refused(env, f"cd /tmp && git clone -q {url} again", "git.example.com")


def test_curl(docker_env: Make, place: Place) -> None:
    site = place.add("site")
    site.files = {"/": b"from curl", "/big": bytes(8 << 20)}
    env = docker_env(network=place.network("site"), ca_bundle=place.authority.bundle)
    assert ran(env, f"curl -sS {place.url('site')}/").stdout == "from curl"
    assert ran(env, f"curl -sS {place.url('site')}/big | wc -c").stdout.strip() == str(8 << 20)
    env.network = place.network()
    said = refused(env, f"curl -sS {place.url('site')}/", "site.example.com")
    assert "403" in said
    # Who asks past the proxy learns that there is no network, and is refused by nobody.
    assert env.run(f"curl --noproxy '*' -sS {place.url('site')}/").unwrap().exit_code == 6


def test_a_certificate_that_is_not_trusted_is_still_refused(docker_env: Make, place: Place) -> None:
    """TLS is between the client and the server: without the authority nothing in between makes it good."""
    place.add("site").files = {"/": b"x"}
    env = docker_env(network=place.network("site"))
    found = env.run(f"curl -sS {place.url('site')}/").unwrap()
    assert found.exit_code == 60
    assert "certificate" in found.stderr


def program(name: str) -> Path:
    """A program of this machine that runs in the image as it is; without one the test is skipped, and in CI fails but for cargo,
    which CI does not install.
    """
    found = Path(sys.executable).with_name(name)
    if name == "cargo" and (rustc := shutil.which("rustc")) is not None:  # "cargo" itself may be a shim of rustup's
        said = subprocess.run([rustc, "--print", "sysroot"], capture_output=True, text=True, check=False).stdout.strip()
        found = Path(said) / "bin/cargo"
    if not found.is_file():
        found = Path(shutil.which(name) or "/nonexistent")
    if not found.is_file() and name == "cargo":
        pytest.skip("cargo is not on this machine")
    if not found.is_file():
        lacking(f"{name} is not on this machine")
    return found.resolve()


def test_cargo(docker_env: Make, place: Place) -> None:
    """The index, the crate, and its check sum; vendoring is what cargo does of this without a compiler."""
    cargo = program("cargo")
    registry = place.add("crates")
    registry.files = cargo_registry("small-note", "1.0.0", 'pub fn note() -> &\'static str { "from cargo" }\n', place.url("crates"))
    env = docker_env(network=place.network("crates"), ca_bundle=place.authority.bundle)
    env.upload(cargo, "/tmp/cargo").unwrap()
    env.write("Cargo.toml", '[package]\nname = "x"\nversion = "0.1.0"\nedition = "2021"\n'
              '[dependencies]\nsmall-note = { version = "1.0.0", registry = "near" }\n').unwrap()  # fmt: skip
    env.write("src/main.rs", "fn main() {}\n").unwrap()
    env.write(".cargo/config.toml", f'[registries.near]\nindex = "sparse+{place.url("crates")}/"\n').unwrap()
    ran(env, "/tmp/cargo vendor -q vendored")
    assert "from cargo" in ran(env, "cat vendored/small-note/src/lib.rs").stdout
    assert "/dl/small-note/1.0.0/download" in [one.path for one in registry.asked]
    env.network = place.network()
    again = "rm -rf ~/.cargo Cargo.lock vendored && /tmp/cargo vendor -q vendored"
    assert "403" in refused(env, again, "crates.example.com")


def test_go(docker_env: Make, place: Place) -> None:
    """The versions, the module and its go.mod; what go does of this without its compiler."""
    go = program("go")
    modules = place.add("modules")
    modules.files = go_proxy("example.org/note", "v1.0.0", 'package note\n\nconst Note = "from go"\n')
    env = docker_env(network=place.network("modules"), ca_bundle=place.authority.bundle)
    env.upload(go, "/tmp/goroot/bin/go").unwrap()
    env.write("/tmp/go.env", f"export GOROOT=/tmp/goroot GOSUMDB=off GOFLAGS=-mod=mod GOPROXY={place.url('modules')}\n").unwrap()
    env.write("go.mod", "module example.org/x\n\ngo 1.18\n\nrequire example.org/note v1.0.0\n").unwrap()
    fetch = ". /tmp/go.env && /tmp/goroot/bin/go mod download"
    ran(env, fetch)
    assert "from go" in ran(env, "cat ~/go/pkg/mod/example.org/note@v1.0.0/note.go").stdout
    assert "/example.org/note/@v/v1.0.0.zip" in [one.path for one in modules.asked]
    env.network = place.network()
    said = refused(env, f"chmod -R u+w ~/go && rm -rf ~/go go.sum && {fetch}", "modules.example.com")
    assert "is refused by the sandbox: no rule opens it" in said


def test_uv(docker_env: Make, place: Place) -> None:
    uv = program("uv")
    index, files = place.add("index"), place.add("files")
    index.files, files.files = python_index(PACKAGES, place.url("files"))
    env = docker_env(network=place.network("index", "files"), ca_bundle=place.authority.bundle)
    env.upload(uv, "/tmp/uv").unwrap()
    install = f"/tmp/uv pip install -q --no-cache --target there --index-url {place.url('index')}/simple rich"
    ran(env, install)
    assert ran(env, "echo '* word' | PYTHONPATH=there python3 -m rich.markdown -").stdout.strip() == "• word"
    env.network = place.network("index")
    said = refused(env, f"rm -rf there && UV_HTTP_RETRIES=0 {install}", "files.example.com")
    assert "tunnel error" in said  # it shows no reason: the notice has it


def test_what_cargo_and_go_read_is_there(docker_env: Make, place: Place) -> None:
    env = docker_env(network=place.network(), ca_bundle=place.authority.bundle)
    told = dict(line.split("=", 1) for line in ran(env, "env").stdout.splitlines() if "=" in line)
    assert told["HTTPS_PROXY"] == told["https_proxy"] == told["HTTP_PROXY"]
    assert "127.0.0.1" in told["NO_PROXY"]
    for name in ("CARGO_HTTP_CAINFO", "SSL_CERT_FILE"):
        assert place.authority.bundle.read_text().strip() in ran(env, f"cat {told[name]}").stdout


WEBSOCKET = """
import sys
sys.path.insert(0, "/tmp/libraries")
import asyncio
from websockets.asyncio.client import connect
async def talk():
    async with connect(sys.argv[1], proxy=True, open_timeout=20) as connection:
        for word in ("one", "two" * 100_000):
            await connection.send(word)
            print(len(await connection.recv()))
asyncio.run(talk())
"""


def test_a_websocket(docker_env: Make, place: Place, tmp_path: Path) -> None:
    import websockets

    source = Path(websockets.__file__).parent
    context = place.authority.context("ws.example.com")
    with sockets.websocket_echo(context) as port:
        network = Network.allow(f"ws.example.com:{port}", names={"ws.example.com": "127.0.0.1"})
        env = docker_env(network=network, ca_bundle=place.authority.bundle)
        env.make_dir("/tmp/libraries").unwrap()
        env.upload(source, "/tmp/libraries/websockets").unwrap()
        env.write("talk.py", WEBSOCKET).unwrap()
        assert ran(env, f"python3 talk.py wss://ws.example.com:{port}").stdout == "3\n300000\n"


def test_a_server_that_stalls_holds_up_nobody(docker_env: Make, place: Place) -> None:
    site = place.add("site", tls=False)
    site.files = {"/": b"quick"}
    with sockets.tcp_server(sockets.stall) as port:
        network = Network.allow(
            f"slow.example.com:{port}", f"site.example.com:{site.port}",
            names={"slow.example.com": "127.0.0.1", "site.example.com": "127.0.0.1"},
        )  # fmt: skip
        env = docker_env(network=network)
        slow = env.run(f"curl -sS -N http://slow.example.com:{port}/", background=True).unwrap().id
        assert env.wait_for(id=slow, log="begun", timeout_seconds=20).ok
        assert ran(env, f"curl -sS {place.url('site', 'http')}/").stdout == "quick"
        env.kill(slow).unwrap()


def test_the_company_proxy_of_the_host(docker_env: Make, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's own HTTPS_PROXY with its password carries what is allowed, and is named, without it, when it refuses."""
    asked: list[str] = []
    site = place.add("site", tls=False)
    site.files = {"/": b"through two proxies"}
    url = f"http://outside.invalid:{site.port}/"  # a name that only the company's proxy resolves
    with sockets.company_proxy("me", "s3cret", asked, {"outside.invalid": "127.0.0.1"}) as port:
        for name in ("NO_PROXY", "no_proxy", "HTTPS_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("https_proxy", f"http://me:s3cret@127.0.0.1:{port}")
        env = docker_env(network=Network.allow(f"outside.invalid:{site.port}"))
        assert ran(env, f"curl -sS {url}").stdout == "through two proxies"
        assert asked == [f"CONNECT outside.invalid:{site.port} HTTP/1.1"]
        assert "is refused by the sandbox" in env.run("curl -sS http://other.invalid/").unwrap().output
        assert len(asked) == 1
        monkeypatch.setenv("https_proxy", f"http://me:wr0ng@127.0.0.1:{port}")
        said = env.run(f"curl -sS {url}").unwrap().output
        assert f"the host's proxy 127.0.0.1:{port}" in said
        assert "407" in said
        assert "wr0ng" not in said
