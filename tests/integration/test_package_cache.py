"""Packages are installed with no network from the cache of the host; what one sandbox fetched, the next one has from there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from sandbox import DockerEnvironment, Limits, Network, PackageCache, SandboxError, Service
from sandbox.operations.commands import RunResult
from tests.servers.packages import npm_package, python_index
from tests.servers.upstream import Upstream

from .made_images import remove_image
from .node_image import node_image

pytestmark = pytest.mark.engine

Make = Callable[..., DockerEnvironment]
SMALL = Limits(memory_bytes=512 << 20)
# A real package and all it needs, which are installed where the tests run.
PACKAGES = ["rich", "markdown-it-py", "mdurl", "pygments"]
INSTALL = "pip install --quiet --no-cache-dir rich"


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as made:
        pages, files = python_index(PACKAGES, made.url)
        made.files = {
            **pages,
            **files,
            **npm_package("small-note", "1.2.3", {"index.js": "module.exports = 7"}, made.url),
        }
        yield made


@pytest.fixture
def cache(upstream: Upstream, tmp_path: Path) -> PackageCache:
    return PackageCache(tmp_path / "packages", pypi=f"{upstream.url}/simple/", npm=upstream.url)


def ran(env: DockerEnvironment, command: str) -> RunResult:
    """What a command gave that worked."""
    found = env.run(command, timeout_seconds=120).unwrap()
    assert found.exit_code == 0, found.output
    return found


def test_pip_in_two_sandboxes_and_one_upstream(docker_env: Make, upstream: Upstream, cache: PackageCache) -> None:
    first = docker_env(limits=SMALL, cache=cache)
    assert first.network == Network.none()
    ran(first, INSTALL)
    assert upstream.count(".whl") == len(PACKAGES)
    upstream.stop()
    asked = len(upstream.asked)
    second = docker_env(limits=replace(SMALL, network_bytes=1), cache=cache)  # it is no traffic of the network
    ran(second, INSTALL)
    assert ran(second, "echo '* word' | python3 -m rich.markdown -").stdout.strip() == "• word"
    assert len(upstream.asked) == asked
    assert {one.host for one in second.connections} == {"packages.internal"}
    assert second.usage().unwrap().network_received_bytes == 0
    assert "package cache" in second.describe()["network"]


def test_npm_in_two_sandboxes_and_one_upstream(
    client: docker.DockerClient, docker_env: Make, upstream: Upstream, cache: PackageCache
) -> None:
    image = node_image(client, "gamebox/base")
    try:
        ran(docker_env(image, limits=SMALL, cache=cache), "npm install --no-fund small-note")
        assert upstream.count(".tgz") == 1
        upstream.stop()
        asked = len(upstream.asked)
        second = docker_env(image, limits=SMALL, cache=cache)
        ran(second, "npm install --no-fund small-note")
        assert ran(second, "node -p 'require(\"small-note\")'").stdout == "7\n"
        assert len(upstream.asked) == asked
        assert "packages.internal" in ran(second, "cat package-lock.json").stdout
        portable = "rm -rf node_modules package-lock.json && npm_config_omit_lockfile_registry_resolved=true npm install small-note"
        ran(second, portable)
        assert "packages.internal" not in ran(second, "cat package-lock.json").stdout
        second.close()
    finally:
        remove_image(client, image)


def test_the_cache_opens_nothing_else(docker_env: Make, upstream: Upstream, cache: PackageCache) -> None:
    env = docker_env(limits=SMALL, cache=cache)
    asked = "curl -s --noproxy '' -o /dev/null -w '%{http_code}' "
    for target in (
        upstream.url.replace("127.0.0.1", "127.0.0.2"),  # the index itself, by an address that is no sandbox's own
        "http://packages.internal:81/",
        "http://other.internal/",
    ):
        assert ran(env, f"{asked} {target}").stdout == "403", target
    for path in (f"pypi/simple/{'/'.join(['..'] * 4)}/etc/passwd", "pypi/files/rich/../../etc/passwd", "etc/passwd"):
        assert ran(env, f"{asked} --path-as-is http://packages.internal/{path}").stdout == "404", path
    said = ran(env, f"{asked} -X PUT -d x http://packages.internal/npm/small-note").stdout
    assert said == "405"
    assert upstream.asked == []


def test_programs_that_know_no_proxy_reach_it_by_its_name(
    docker_env: Make, upstream: Upstream, cache: PackageCache
) -> None:
    env = docker_env(limits=SMALL, cache=cache)
    page = ran(env, "curl -s --noproxy '*' http://packages.internal/pypi/simple/mdurl/").stdout
    assert "/pypi/files/mdurl/mdurl-" in page
    with pytest.raises(SandboxError, match="beside the package cache"):
        docker_env(cache=cache, services=[Service("packages", "https://packages.example.com")])


def test_a_wrong_file_is_refused_in_words(docker_env: Make, upstream: Upstream, cache: PackageCache) -> None:
    for path in [path for path in upstream.files if path.startswith("/files/mdurl")]:
        upstream.files[path] = upstream.files[path] + b"!"
    env = docker_env(limits=SMALL, cache=cache)
    failed = env.run(INSTALL, timeout_seconds=120).unwrap()
    assert failed.exit_code != 0
    assert "is refused: its sha256 is" in failed.output


def test_the_command_line_keeps_packages_too(upstream: Upstream, tmp_path: Path) -> None:
    told = {"PIP_INDEX_URL": f"{upstream.url}/simple", "npm_config_registry": upstream.url}
    command = f"{INSTALL} && pip list"
    for _ in range(2):
        done = subprocess.run(
            [Path(sys.executable).with_name("gamebox"), "run", "--cache", tmp_path / "packages", "--", "sh", "-c", command],
            env={**os.environ, **told}, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "markdown-it-py" in done.stdout
        assert upstream.count(".whl") == len(PACKAGES)


def test_a_fork_has_it_too_and_a_bridge_does_not(docker_env: Make, upstream: Upstream, cache: PackageCache) -> None:
    env = docker_env(limits=SMALL, cache=cache)
    for fork in env.fork(1).unwrap().environments:
        with fork:
            assert fork.run("pip download --no-deps --quiet mdurl", timeout_seconds=60).unwrap().exit_code == 0
    with pytest.raises(SandboxError, match="cannot reach a package cache"):
        DockerEnvironment(network=Network.bridge(), cache=cache)
