"""Commands that the documentation shows work in the image it names (UX 4: `python`, pytest and npm were in none)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, Limits, PackageCache, services
from tests.servers.packages import npm_package, python_index
from tests.servers.upstream import Upstream

# Making the images takes a minute each where they are missing.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MIB = 1 << 20


def checks() -> list[str]:
    """What pages say a task is checked with: `--check "..."`, and `"checks": ["..."]`."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    listed = re.findall(r'"checks": \["([^"]+)"', text)
    return sorted({*re.findall(r'--check "([^"]+)"', text), *listed})


@pytest.fixture(scope="module")
def base() -> Iterator[DockerEnvironment]:
    with DockerEnvironment(limits=Limits(memory_bytes=512 * MIB)) as env:
        yield env


@pytest.mark.parametrize("command", checks())
def test_the_checks_of_the_pages_pass_in_the_base_image(base: DockerEnvironment, command: str) -> None:
    base.write("test_it.py", "def test_it():\n    assert 1 + 1 == 2\n").unwrap()
    ran = base.run(command, timeout_seconds=60).unwrap()
    assert ran.exit_code == 0, ran.output


def test_the_programs_that_base_is_said_to_have(base: DockerEnvironment) -> None:
    for program in ("python", "pip", "pytest", "uv", "git", "rg", "jq", "curl"):
        ran = base.run(f"{program} --version", timeout_seconds=60).unwrap()
        assert ran.exit_code == 0, (program, ran.output)


def test_the_installations_of_the_network_page_work_in_the_image_it_names(tmp_path: Path) -> None:
    page = (ROOT / "docs/reference/services.md").read_text(encoding="utf-8")
    found = re.search(r'DockerEnvironment\("([^"]+)", cache=cache\).*\n    env\.run\("([^"]+)"\)', page)
    assert found is not None
    image, command = found.groups()
    with Upstream() as upstream:
        pages, files = python_index(["rich", "markdown-it-py", "mdurl", "pygments"], upstream.url)
        left_pad = npm_package("left-pad", "1.3.0", {"index.js": "module.exports = 7"}, upstream.url)
        upstream.files = {**pages, **files, **left_pad}
        cache = PackageCache(tmp_path / "packages", pypi=f"{upstream.url}/simple/", npm=upstream.url)
        with DockerEnvironment(image, limits=Limits(memory_bytes=1024 * MIB), cache=cache) as env:
            ran = env.run(command, timeout_seconds=120).unwrap()
            assert ran.exit_code == 0, ran.output
            shown = env.run("node -p 'require(\"left-pad\")'; npm --version; python -c 'import rich'").unwrap()
            assert (shown.exit_code, shown.output.splitlines()[0]) == (0, "7"), shown.output


def test_ready_made_services_work_as_the_network_page_shows() -> None:
    """UX: PostgreSQL beside a sandbox took a search of images/, a user and a command of one's own."""
    page = (ROOT / "docs/reference/services.md").read_text(encoding="utf-8")
    shown = re.search(r"    env\.run\(\"(psql -h db [^\"]+)\"\)", page)
    assert shown is not None
    beside = {"db": services.postgres(database="orders"), "cache": services.redis()}
    with DockerEnvironment("gamebox/postgres", limits=Limits(memory_bytes=512 * MIB), services=beside) as env:
        made = env.run(shown[1]).unwrap()
        assert (made.exit_code, made.output) == (0, "CREATE TABLE\n")
        ask = "import socket; s = socket.create_connection(('cache', 6379)); s.send(b'PING\\r\\n'); print(s.recv(99))"
        assert env.run(argv=["python", "-c", ask]).unwrap().output == "b'+PONG\\r\\n'\n"
        for name in beside:
            assert env.services[name].ended is None
