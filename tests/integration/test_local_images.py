"""Images of this host's own user: built from a value or a Dockerfile, started, listed, and moved in archives."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sandbox import DockerEnvironment, Image, Limits, Network, SandboxError
from sandbox.docker.builds.layers import ImageStore
from sandbox.docker.builds.log import LogEntry
from sandbox.docker.local_images.archives import export_file, export_image, import_image
from sandbox.docker.local_images.stored import list_images, remove_image
from sandbox.errors import ErrorCode
from sandbox.readers import hint_for
from tests.programs import run_gamebox

from .made_images import busybox_image, static_busybox
from .made_images import remove_image as remove_made
from .own_engine import lacking

pytestmark = pytest.mark.engine

Make = Callable[..., DockerEnvironment]
SMALL = Limits(memory_bytes=256 << 20, disk_bytes=128 << 20)
TOOLS = "sh cat ls echo id env sleep"
# Names of the engine are for all: another run of these tests must not meet ours.
NAME = f"gamebox-test-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def base(client: docker.DockerClient) -> Iterator[str]:
    """An image of two MB with a shell."""
    busybox = static_busybox()
    if busybox is None:
        lacking("no static busybox here (Debian: busybox-static)")
    made = busybox_image(client, busybox, TOOLS.split())
    yield made
    for image in list_images():
        if image.name.startswith(NAME):
            remove_image(image.name)
    base_id = client.api.inspect_image(made)["Id"]
    # Its layers, and nobody else's: those of the cache are named by what they were built on.
    for image in client.api.images(all=True):
        if base_id in _parents(client, str(image["Id"])):
            for tag in image["RepoTags"] or ():
                remove_made(client, tag)
    remove_made(client, made)


def _parents(client: docker.DockerClient, image_id: str) -> list[str]:
    found: list[str] = []
    while image_id and len(found) < 130:
        try:
            image_id = str(client.api.inspect_image(image_id).get("Parent") or "")
        except docker.errors.ImageNotFound:
            break
        found.append(image_id)
    return found


def gamebox(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_gamebox(*args, env={**os.environ, "COLUMNS": "120", **env})


def refused(call: Callable[[], object]) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        call()
    return caught.value


def test_an_image_is_built_from_a_value_and_started(base: str, tmp_path: Path, docker_env: Make) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("one")
    image = Image.of(base).copy(tmp_path / "files", "/srv").env(MODE="test").workdir("/srv")
    image = image.run("echo $MODE $SECRET >made; cat a.txt")
    log: list[LogEntry] = []
    options: dict[str, Any] = {"limits": SMALL, "network": Network.none(), "env": {"SECRET": "not-to-be-shown"}}
    first = image.build(f"{NAME}/a:1", on_log=log.append, **options)
    assert (first.steps_run, first.steps_cached) == (2, 0)
    assert "one" in [entry.text for entry in log]
    assert not any("not-to-be-shown" in entry.text for entry in log)
    os.utime(tmp_path / "files" / "a.txt", (1, 1))  # the content decides, not its date
    again = image.build(**options)
    assert (again.steps_run, again.steps_cached, again.id) == (0, 2, first.id)

    lines: list[str] = []
    env = docker_env(image, limits=SMALL, report=lines.append)
    assert env.run("cat /srv/made; echo $MODE").unwrap().stdout == "test not-to-be-shown\ntest\n"
    assert not [line for line in lines if "building the image" in line]
    assert f"image {image}" in env.describe()["sandbox"]
    assert env.spec.to_data()["image"] == str(image)
    assert docker_env(f"{NAME}/a:1", limits=SMALL).run("cat /srv/a.txt").unwrap().stdout == "one"

    (tmp_path / "files" / "a.txt").write_text("two")
    lines.clear()
    changed = docker_env(image, limits=SMALL, network=Network.none(), report=lines.append)
    assert changed.run("cat /srv/a.txt /srv/made").unwrap().stdout == "twotest\n"
    assert [line.partition(":")[0] for line in lines if line.startswith("building")] == [
        "building the image, step 1 of 4", "building the image, step 4 of 4",
    ]  # fmt: skip


def test_a_step_that_fails_is_shown_with_its_last_lines(base: str) -> None:
    failed = refused(lambda: Image.of(base).run("echo first; echo last >&2; exit 3").build(limits=SMALL, network=Network.none()))
    assert failed.code is ErrorCode.image_build_failed
    assert "exit status 3" in failed.message
    assert failed.hint
    assert failed.result == {"step": "1", "exit_code": 3, "log": ["first", "last"]}
    # One that no sandbox can be of.
    with pytest.raises(SandboxError) as caught, DockerEnvironment(Image.of(base).run("nothing-here"), limits=SMALL):
        pass
    assert "127" in caught.value.message


def test_a_name_that_another_image_has_is_left_alone(base: str, client: docker.DockerClient) -> None:
    client.api.tag(base, f"{NAME}/foreign", "latest")
    try:
        taken = refused(lambda: Image.of(base).env(A="1").build(f"{NAME}/foreign", network=Network.none()))
        assert "did not build" in taken.message
        assert "did not build" in refused(lambda: remove_image(f"{NAME}/foreign")).message
        assert "own images" in refused(lambda: Image.of(base).build("gamebox/base")).message
        assert f"{NAME}/foreign" not in [each.name for each in list_images()]
    finally:
        remove_made(client, f"{NAME}/foreign")


def test_an_image_moves_in_an_archive(base: str, tmp_path: Path, docker_env: Make) -> None:
    Image.of(base).env(MODE="moved").run("echo kept >/made").build(f"{NAME}/m", limits=SMALL, network=Network.none())
    with export_file(tmp_path / "m.tar.gz", replace=False) as file:
        export_image(f"{NAME}/m", file)
    assert refused(lambda: export_file(tmp_path / "m.tar.gz", replace=False).__enter__()).code is ErrorCode.path_exists
    taken = refused(lambda: import_image(tmp_path / "m.tar.gz"))
    assert "has an image" in taken.message
    assert "--replace" in hint_for("cli", taken.hint)
    remove_image(f"{NAME}/m")
    done = import_image(tmp_path / "m.tar.gz")
    assert done.name == f"{NAME}/m"
    assert docker_env(done.name, limits=SMALL).run("cat /made; echo $MODE").unwrap().stdout == "kept\nmoved\n"
    (kind,) = [each.kind for each in list_images() if each.name == done.name]
    assert kind == "imported"
    assert ImageStore("").find(done.name) is not None

    # A byte of a layer, which the hash tells; the image of that name is what it was.
    broken = bytearray(gzip.decompress((tmp_path / "m.tar.gz").read_bytes()))
    at = broken.index(b"kept\n")
    broken[at : at + 4] = b"bad!"
    (tmp_path / "broken.tar").write_bytes(broken)
    assert refused(lambda: import_image(tmp_path / "broken.tar", replace=True)).code is ErrorCode.unsafe_archive
    assert "more than" in refused(lambda: import_image(tmp_path / "m.tar.gz", replace=True, most_bytes=4096)).message
    assert [each.id for each in list_images() if each.name == done.name] == [done.id]


def test_the_commands(base: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    lines = f"FROM {base}\nARG WHO=you\nCOPY *.txt /srv/\nRUN echo hello $WHO >/srv/hello; echo output\n"
    (tmp_path / "Dockerfile").write_text(lines)
    name = f"{NAME}/cli"
    none = ("--network", "none", "--memory", "256m", "--disk", "128m")
    built = gamebox("image", "build", "--tag", name, "--arg", "WHO=me", *none, str(tmp_path))
    assert (built.returncode, built.stdout) == (0, f"{name}\n"), built.stderr
    assert "[2/2] RUN echo hello" in built.stderr
    assert "    output\n" in built.stderr
    again = gamebox("image", "build", "--json", "--arg", "WHO=me", *none, str(tmp_path))
    assert [step["cached"] for step in json.loads(again.stdout)["steps"] if step["step"].isdecimal()] == [True, True]
    ran = gamebox("run", "--image", name, "--memory", "256m", "--disk", "128m", "--", "cat", "/srv/hello", "/srv/a.txt")
    assert ran.stdout == "hello me\none"

    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN echo before; exit 4\n")
    failed = gamebox("image", "build", "--json", *none, str(tmp_path))
    assert failed.returncode == 2
    assert json.loads(failed.stdout)["result"]["exit_code"] == 4
    assert "    before\n" in failed.stderr
    assert "hint: " in failed.stderr
    (tmp_path / "empty").mkdir()
    missing = gamebox("image", "build", str(tmp_path / "empty"))
    assert missing.returncode == 2
    assert "no Dockerfile" in missing.stderr
    assert "--file" in missing.stderr

    listed = json.loads(gamebox("image", "ls", "--json").stdout)
    assert [each["kind"] for each in listed if each["name"] == name] == ["built"]
    archive = str(tmp_path / "cli.tar")
    assert gamebox("image", "export", name, archive).returncode == 0
    assert "--replace" in gamebox("image", "export", name, archive).stderr
    assert "--replace" in gamebox("image", "import", archive).stderr
    assert gamebox("image", "import", archive, "--name", f"{name}:2").stdout == f"{name}:2\n"
    removed = gamebox("image", "rm", name, f"{name}:2", "no-such-image")
    assert (removed.returncode, removed.stdout) == (2, f"{name}\n{name}:2\n")
    assert "no-such-image" in removed.stderr
    assert gamebox("image", "prune").stdout.startswith("freed ")
