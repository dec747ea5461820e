"""What agents use to fetch things finds the way out by itself: nothing in these commands names a proxy or a certificate."""

from __future__ import annotations

import subprocess
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sandbox import DockerEnvironment, Limits, Network
from sandbox.envelope import Envelope, Failure
from sandbox.errors import ErrorCode
from sandbox.readers import hint_for

from .serving import ELSEWHERE, certificate, serving_files

pytestmark = pytest.mark.engine

SMALL = Limits(memory_bytes=512 << 20)
Make = Callable[..., DockerEnvironment]


@dataclass(frozen=True)
class Site:
    url: str
    rule: str
    ca: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    _wheel(folder / "simple" / "told")
    _repository(folder / "told.git")
    _packages(folder / "apt", tmp_path_factory.mktemp("deb"))
    (folder / "page.txt").write_text("a page")
    key, made = certificate(tmp_path_factory.mktemp("ca"))
    with serving_files(folder, key, made) as port:
        yield Site(f"https://{ELSEWHERE}:{port}", f"{ELSEWHERE}:{port}", made)


def _wheel(folder: Path) -> None:
    folder.mkdir(parents=True)
    name = "told-1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr("told.py", "WORD = 'told'\n")
        wheel.writestr("told-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: told\nVersion: 1.0\n")
        wheel.writestr("told-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("told-1.0.dist-info/RECORD", "")
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')


def _repository(folder: Path) -> None:
    def git(*arguments: str | Path) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        subprocess.run(["git", *who, *arguments], check=True, capture_output=True)

    work = folder.with_suffix(".work")
    git("init", "-q", work)
    (work / "README").write_text("cloned")
    git("-C", work, "add", ".")
    git("-C", work, "commit", "-q", "-m", "one")
    git("clone", "-q", "--bare", work, folder)
    git("-C", folder, "update-server-info")


def _packages(folder: Path, tree: Path) -> None:
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN" / "control").write_text(
        "Package: told\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@example.com>\nDescription: told\n"
    )
    (tree / "opt").mkdir()
    (tree / "opt" / "told").write_text("installed")
    folder.mkdir()
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", tree, folder / "told.deb"], check=True, capture_output=True
    )
    size = (folder / "told.deb").stat().st_size
    digest = subprocess.run(
        ["sha256sum", folder / "told.deb"], check=True, capture_output=True, text=True
    ).stdout.split()[0]
    (folder / "Packages").write_text(
        "Package: told\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@example.com>\nFilename: ./told.deb\n"
        f"Size: {size}\nSHA256: {digest}\nDescription: told\n"
    )


def test_pip_git_curl_and_python_find_the_way(docker_env: Make, site: Site) -> None:
    env = docker_env(limits=SMALL, network=Network.allow(site.rule), ca_bundle=site.ca)

    def said(command: str) -> str:
        ran = env.run(command).unwrap()
        assert ran.exit_code == 0, ran.output
        return ran.output.strip()

    assert said(f"curl -sS {site.url}/page.txt") == "a page"
    fetched = f"import urllib.request as u; print(u.urlopen('{site.url}/page.txt').read().decode())"
    assert said(f'python3 -c "{fetched}"') == "a page"
    said(f"git clone -q {site.url}/told.git")
    assert said("cat told/README") == "cloned"
    said(f"python3 -m venv v && v/bin/pip install -q --index-url {site.url}/simple told")
    assert said("v/bin/python -c 'import told; print(told.WORD)'") == "told"


def test_a_refused_page_is_told_with_the_reason(docker_env: Make) -> None:
    env = docker_env(limits=SMALL)
    for url in ("https://example.com/", "http://example.com/"):
        refused = env.browse(url)
        assert isinstance(refused, Failure)
        assert refused.code is ErrorCode.network_denied
        assert "this sandbox has no network" in refused.error
    env.allow("example.org")
    refused = env.browse("https://example.com/")
    assert isinstance(refused, Failure)
    assert "no rule opens it" in refused.error


def test_apt_finds_the_way_in_the_profile_root(docker_env: Make, site: Site) -> None:
    env = docker_env(limits=SMALL, network=Network.allow(site.rule), ca_bundle=site.ca, profile="root")
    listed = f"deb [trusted=yes] {site.url}/apt ./"
    ran = env.run(
        f"rm -rf /etc/apt/sources.list*; echo '{listed}' > /etc/apt/sources.list; apt-get update -q && apt-get install -qy told"
    ).unwrap()
    assert ran.exit_code == 0, ran.output
    assert env.run("cat /opt/told").unwrap().output == "installed"


def test_a_refusal_comes_fast_and_with_the_reason(docker_env: Make) -> None:
    env = docker_env(limits=SMALL)
    ran = env.run("pip download --no-deps told", timeout_seconds=30).unwrap()
    assert ran.exit_code != 0
    assert "is refused by the sandbox: this sandbox has no network" in ran.output
    ran = env.run("git clone -q https://example.com/told.git", timeout_seconds=30).unwrap()
    assert "403" in ran.output


def test_servers_in_the_sandbox_are_reached_directly(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, network=Network.open())
    env.run("python3 -m http.server 8000", background=True).unwrap()
    assert env.wait_for(port=8000).ok
    for name in ("localhost", "127.0.0.1", "0.0.0.0"):
        assert env.run(f"curl -sS -o /dev/null -w '%{{http_code}}' http://{name}:8000/").unwrap().output == "200"


def test_a_users_own_variables_win(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, env={"https_proxy": "http://127.0.0.1:9", "PIP_RETRIES": "7"})
    assert env.run("echo $https_proxy $PIP_RETRIES").unwrap().output.split() == ["http://127.0.0.1:9", "7"]


def test_a_bridge_has_no_proxy(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, network=Network.bridge())
    assert "24128" not in env.run("env").unwrap().output


def refusals(answer: Envelope[Any]) -> list[str]:
    return [notice.message for notice in answer.notices if notice.code == "network_denied"]


def test_the_command_that_was_refused_is_told(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, network=Network.allow("example.com"))
    ident = env.run("sleep 30", background=True, session=None).unwrap().id
    refused = env.run("for i in 1 2 3; do curl -sS https://evil.test/; done; curl -s http://evil.test:8080/ | cat")
    assert refusals(refused) == [
        "A connection to evil.test:443 was refused, 3 times: no rule opens it.",
        "A connection to evil.test:8080 was refused: no rule opens it.",
    ]
    hints = [hint_for("host", notice.hint) for notice in refused.notices if notice.code == "network_denied"]
    assert "env.allow('evil.test')" in hints[0]
    assert "env.allow('evil.test:8080')" in hints[1]
    assert refusals(env.run("true")) == []
    assert refusals(env.kill(ident)) == []


def test_a_background_command_that_was_refused_is_told_with_the_next_answer(docker_env: Make) -> None:
    env = docker_env(limits=SMALL)
    ident = env.run("sleep 0.5; curl -sS https://evil.test/; sleep 30", background=True, session=None).unwrap().id
    answers = [env.wait_for(id=ident, log="403", timeout_seconds=20), env.run("true"), env.run("true")]
    told = [message for answer in answers for message in refusals(answer)]
    assert told == [
        "A connection to evil.test:443 was refused (from the command c1): this sandbox has no network."
    ]


def test_who_hides_its_sockets_has_every_running_command_told(docker_env: Make) -> None:
    env = docker_env(limits=SMALL)
    waiting = env.run("sleep 600", background=True, session=None).unwrap().id
    hides = (
        "import ctypes, urllib.request, urllib.error\nctypes.CDLL(None).prctl(4, 0)\n"
        "try: urllib.request.urlopen('http://evil.test/')\nexcept urllib.error.HTTPError as e: print(e.code)"
    )
    env.write("hide.py", hides).unwrap()
    refused = env.run("python3 hide.py; echo done")
    assert refused.unwrap().output.split() == ["403", "done"]
    told = refusals(refused)
    assert any("or another running command" in message for message in told)
    assert any(waiting in message for message in told)


def test_a_program_that_goes_around_the_proxy_is_told_why_it_fails(docker_env: Make) -> None:
    env = docker_env(limits=SMALL, network=Network.open())
    for command in (
        "curl --noproxy '*' -sS https://example.com/",
        "python3 -c \"import socket; socket.create_connection(('192.0.2.1', 80))\"",
        "python3 -c \"import socket; socket.getaddrinfo('example.com', 80)\"",
    ):
        answer = env.run(command)
        assert [notice.code for notice in answer.notices] == ["no_direct_network"], answer.unwrap().output
    assert env.run("echo Could not resolve host").notices == ()
