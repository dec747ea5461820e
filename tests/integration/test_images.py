"""Images in a real engine: our own are built once and renewed when asked, everything else is used or refused."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from sandbox import DockerEnvironment
from sandbox.docker import backend
from sandbox.docker.engine.client import describe, is_local
from sandbox.docker.images import recipes
from sandbox.docker.images.images import ensure_image
from sandbox.errors import ErrorCode, SandboxError

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("runtime"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def base(client: docker.DockerClient) -> str:
    return ensure_image(client, "gamebox/base", report=print)


def shell(client: docker.DockerClient, image: str, command: str) -> str:
    container = client.containers.create(image, ["bash", "-ec", command], network_mode="none", user="1000:1000")
    try:
        container.start()
        status = container.wait(timeout=120)["StatusCode"]
        said = container.logs().decode()
    finally:
        container.remove(force=True)
    assert status == 0, said
    return said.strip()


def test_the_engine_describes_itself(client: docker.DockerClient) -> None:
    facts = describe(client)
    assert tuple(map(int, facts.api_version.split("."))) >= (1, 41)
    assert facts.cgroup_version in (1, 2)
    assert facts.memory_bytes > 0
    assert facts.cpus > 0
    assert is_local(client) or not os.environ.get("DOCKER_HOST", "unix:").startswith("unix:")


@pytest.mark.parametrize("name", ["gamebox-test/none-such:1", "gamebox/none-such", "gamebox/base:none-such"])
def test_an_unknown_image_is_refused_and_not_pulled(client: docker.DockerClient, name: str) -> None:
    said: list[str] = []
    with pytest.raises(SandboxError) as caught:
        ensure_image(client, name, report=said.append)
    assert caught.value.code is ErrorCode.image_not_found
    assert name in caught.value.message
    assert f"docker pull {name}" in caught.value.hint
    assert "--pull" in caught.value.hint
    assert said == []


def test_a_foreign_image_that_is_there_is_used(client: docker.DockerClient, base: str) -> None:
    name = f"gamebox-test/{uuid.uuid4().hex}"
    client.images.get(base).tag(name, "1")
    try:
        assert ensure_image(client, f"{name}:1", report=print) == base
    finally:
        client.images.remove(f"{name}:1")


def test_base_has_what_an_agent_works_with(client: docker.DockerClient, base: str) -> None:
    programs = "bash git rg ps curl python3 pip gcc make less vi"
    assert len(shell(client, base, f"command -v {programs}").splitlines()) == len(programs.split())
    assert shell(client, base, "id -un; id -u; id -g; echo $HOME; pwd; stat -c %U:%G . /home/agent").split() == [
        "agent", "1000", "1000", "/home/agent", "/workspace", "agent:agent", "agent:agent",
    ]  # fmt: skip


def test_base_compiles_and_makes_virtual_environments(client: docker.DockerClient, base: str) -> None:
    compiling = 'echo "int main(void) { return 42; }" >a.c; gcc a.c -o a; ./a || echo $?'
    said = shell(client, base, f"{compiling}; python3 -m venv v; v/bin/pip --version").splitlines()
    assert said[0] == "42"
    assert said[-1].startswith("pip ")


def test_base_lets_the_agent_install_for_itself(client: docker.DockerClient, base: str) -> None:
    """Debian's pip refuses outside virtual environments; here the home of the agent is one."""
    script = 'from setuptools import setup; setup(name="p", py_modules=["m"])'
    making = f"mkdir p; printf '{script}' >p/setup.py; echo x=7 >p/m.py"
    installing = "pip install --quiet --no-index --no-build-isolation ./p"
    said = shell(client, base, f"{making}; {installing}; cd /; python3 -c 'import m; print(m.x)'")
    assert said.splitlines()[-1] == "7"


def test_base_trusts_each_certificate_once(client: docker.DockerClient, base: str) -> None:
    found = shell(client, base, "cat /etc/ssl/certs/ca-certificates.crt").split("-----END CERTIFICATE-----")
    assert len(found) > 50
    assert len({"".join(pem.split()) for pem in found}) == len(found)


@pytest.fixture
def probe(tmp_path: Path, client: docker.DockerClient, base: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of recipes with one more in it, named after a new image."""
    shutil.copytree(recipes.images_folder(), tmp_path / "images")
    folder = tmp_path / "images" / f"probe-{uuid.uuid4().hex}"
    folder.mkdir()
    (folder / "Dockerfile").write_text("ARG BASE=gamebox/base\nFROM ${BASE}\nCOPY mark /mark\n")
    (folder / "mark").write_text("first")
    monkeypatch.setattr(recipes, "images_folder", lambda: tmp_path / "images")
    yield folder
    for found in client.images.list(name=f"gamebox/{folder.name}"):
        client.images.remove(str(found.id), force=True)


def test_built_where_missing_then_used_then_renewed_when_asked(client: docker.DockerClient, probe: Path) -> None:
    name = f"gamebox/{probe.name}"
    said: list[str] = []
    first = ensure_image(client, name, report=said.append)
    assert f"building {name}" in said
    assert shell(client, name, "cat /mark") == "first"

    said.clear()
    assert ensure_image(client, name, report=said.append) == first
    assert not [line for line in said if name in line]

    (probe / "mark").write_text("second")
    assert ensure_image(client, name, report=said.append) == first
    assert [line for line in said if name in line] == [
        f"{name} is older than its recipe; `gamebox setup` rebuilds it"
    ]

    second = ensure_image(client, name, report=said.append, rebuild_stale=True)
    assert second != first
    assert shell(client, name, "cat /mark") == "second"
    with pytest.raises(SandboxError):
        ensure_image(client, first, report=print)  # what was replaced is gone


def test_callers_at_once_build_it_once(client: docker.DockerClient, probe: Path) -> None:
    said: list[str] = []
    found: list[str] = []
    name = f"gamebox/{probe.name}"
    threads = [
        threading.Thread(target=lambda: found.append(ensure_image(client, name, report=said.append))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert said.count(f"building {name}") == 1


def test_a_build_that_fails_says_what_it_said(client: docker.DockerClient, probe: Path) -> None:
    (probe / "Dockerfile").write_text("ARG BASE=gamebox/base\nFROM ${BASE}\nRUN echo so far so good; exit 3\n")
    with pytest.raises(SandboxError) as caught:
        ensure_image(client, f"gamebox/{probe.name}", report=print)
    assert caught.value.code is ErrorCode.image_build_failed
    assert probe.name in caught.value.message
    assert "returned a non-zero code: 3" in caught.value.message
    assert "so far so good" in caught.value.hint


def test_a_start_finds_an_image_that_was_built_anew_meanwhile(
    client: docker.DockerClient, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D24: the id that was looked up is gone at the create, and the hint was to pull it."""
    answers = ["sha256:" + "0" * 64]
    monkeypatch.setattr(
        backend, "ensure_image", lambda *args, **options: answers.pop() if answers else ensure_image(*args, **options)
    )
    with DockerEnvironment() as env:
        assert env.run("echo works").unwrap().output == "works\n"
    assert answers == []


def test_an_image_is_pulled_on_request_and_a_failure_says_why(client: docker.DockerClient) -> None:
    """UX 14: `--image python:3.12` was refused. The registry here is a port on which nothing listens: no registry is at hand."""
    said: list[str] = []
    name = "127.0.0.1:9/none/such:1"
    with pytest.raises(SandboxError) as caught:
        ensure_image(client, name, report=said.append, pull=True)
    assert caught.value.code is ErrorCode.image_not_found
    assert "could not be pulled" in caught.value.message
    assert "refused" in caught.value.message
    assert "docker login" in caught.value.hint
    assert said == [f"pulling {name}", f"could not get {name} from a registry"]


def test_an_image_that_is_there_is_not_pulled(client: docker.DockerClient, base: str) -> None:
    name = f"127.0.0.1:9/{uuid.uuid4().hex}"
    client.images.get(base).tag(name, "1")
    try:
        assert ensure_image(client, f"{name}:1", report=print, pull=True) == base
    finally:
        client.images.remove(f"{name}:1")


def test_text_is_utf_8_unless_the_caller_has_another_language() -> None:
    count = """printf '\\303\\244' | wc -m; echo "$LANG,$LC_CTYPE" """
    with DockerEnvironment() as env:
        assert env.run(count).unwrap().output == "1\n,C.UTF-8\n"
    with DockerEnvironment(env={"LANG": "C"}) as env:
        assert env.run(count).unwrap().output == "2\nC,\n"
