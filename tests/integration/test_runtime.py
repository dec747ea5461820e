"""The guest's interpreter and code in a real engine: in any image, verified, made once, renewed, cleaned up."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from sandbox.docker.engine.client import connect
from sandbox.docker.images import recipes, runtime
from sandbox.docker.images.images import ensure_image
from sandbox.docker.images.known_volume import recall, remember, take_snapshot
from sandbox.docker.images.runtime import CA_BUNDLE, MOUNT_POINT, RuntimeVolume, ensure_runtime, forget_runtime
from sandbox.errors import ErrorCode, SandboxError

from .made_images import import_image, remove_image, static_busybox

# One worker: a runtime volume that nobody uses may go whenever another one is made.
pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("runtime"), pytest.mark.timeout(180)]

FOREIGN = f"lib/{platform.machine()}-linux-gnu"


@pytest.fixture(scope="module")
def volume(client: docker.DockerClient) -> RuntimeVolume:
    return ensure_runtime(client, report=print)


@pytest.fixture
def images(client: docker.DockerClient) -> Iterator[list[str]]:
    made: list[str] = []
    yield made
    for name in made:
        remove_image(client, name)


def run_python(client: docker.DockerClient, volume: RuntimeVolume, image: str, code: str, *arguments: str) -> str:
    """What that code says, on both of its outputs, in a container as sandboxes are made."""
    mount = docker.types.Mount(volume.mount, volume.name, type="volume", read_only=True, no_copy=True)
    command = [*volume.argv, "-c", code, *arguments]
    container = client.containers.create(
        image, command, mounts=[mount], network_mode="none", user="1000:1000", read_only=True, cap_drop=["ALL"],
        environment={"PYTHONPATH": "/empty", "PYTHONHOME": "/empty", "LD_LIBRARY_PATH": f"/{FOREIGN}", "LANG": "xx_XX"},
    )  # fmt: skip
    try:
        container.start()
        status = container.wait(timeout=60)["StatusCode"]
        said = container.logs().decode()
    finally:
        container.remove(force=True)
    assert status == 0, said
    return said


EXAMINE = """
import json, struct, socket, select, ctypes, ssl, zlib, hashlib, subprocess, threading, sys, pwd, os
thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
try:
    pwd.getpwnam("nobody-here")
except KeyError:
    pass
from markdownify import markdownify
import gamebox_guest
with open("/proc/self/maps") as maps:
    files = {line.split()[5] for line in maps if len(line.split()) > 5 and line.split()[5].startswith("/")}
print(json.dumps({
    "prefix": sys.prefix, "path": sys.path, "encoding": sys.getfilesystemencoding(),
    "files": sorted(files), "uid": os.getuid(),
    "markdown": markdownify("<p>a <b>b</b> <a href='/c'>d</a></p>").strip(), "guest": gamebox_guest.__file__,
    "certificates": len(ssl.create_default_context(cafile=sys.argv[1]).get_ca_certs()),
}))
"""


def examine(client: docker.DockerClient, volume: RuntimeVolume, image: str) -> None:
    found = json.loads(run_python(client, volume, image, EXAMINE, CA_BUNDLE))
    assert found["prefix"] == MOUNT_POINT
    assert all(part.startswith(MOUNT_POINT) for part in [*found["path"], *found["files"], found["guest"]])
    assert found["encoding"] == "utf-8"
    assert found["markdown"] == "a **b** [d](/c)"
    assert found["uid"] == 1000
    assert found["certificates"] > 50


def test_it_runs_in_an_image_that_holds_nothing(
    client: docker.DockerClient, volume: RuntimeVolume, images: list[str]
) -> None:
    images.append(import_image(client, {}))
    examine(client, volume, images[0])


def test_it_runs_in_an_image_that_holds_nothing_but_busybox(
    client: docker.DockerClient, volume: RuntimeVolume, images: list[str]
) -> None:
    busybox = static_busybox()
    if busybox is None:
        pytest.skip("no static busybox here (Debian: busybox-static)")
    image = import_image(client, {"bin/busybox": busybox.read_bytes()})
    images.append(image)
    examine(client, volume, image)
    code = (
        'import subprocess; print(subprocess.check_output(["/bin/busybox", "echo", "hello"], env={}).decode(), end="")'
    )
    assert run_python(client, volume, image, code) == "hello\n"


def test_it_runs_in_our_own_image(client: docker.DockerClient, volume: RuntimeVolume) -> None:
    examine(client, volume, "gamebox/base")


def test_it_takes_nothing_from_an_image_with_a_c_library_of_its_own(
    client: docker.DockerClient, volume: RuntimeVolume, images: list[str]
) -> None:
    """However an image could slip a library in: preload, cache, default folders, name services, environment."""
    names = ["libc.so.6", "libpreload.so", "libnss_mine.so.2", "libz.so.1", "libgcc_s.so.1"]
    image = import_image(
        client,
        {
            "etc/ld.so.preload": f"/{FOREIGN}/libpreload.so\n".encode(),
            "etc/ld.so.cache": b"glibc-ld.so.cache1.1" + b"\xff" * 64,
            "etc/nsswitch.conf": b"passwd: mine\nhosts: mine\n",
            **{f"{FOREIGN}/{name}": b"not a library" for name in names},
            **{f"lib64/{name}": b"not a library" for name in names},
        },
    )
    images.append(image)
    examine(client, volume, image)


BYTE_CODE = """
import importlib.util, os
stale = []
for folder, _, names in os.walk("/.gamebox/modules/"):
    for name in names:
        if name.endswith(".pyc"):
            with open(os.path.join(folder, name), "rb") as file:
                magic, flags = file.read(4), int.from_bytes(file.read(4), "little")
            if magic != importlib.util.MAGIC_NUMBER or flags != 1:
                stale.append(name)
        elif name.endswith(".py") and not os.path.exists(importlib.util.cache_from_source(os.path.join(folder, name))):
            stale.append(name)
print(stale)
"""


def test_every_module_is_compiled_and_never_looked_at_again(client: docker.DockerClient, volume: RuntimeVolume) -> None:
    assert run_python(client, volume, "gamebox/base", BYTE_CODE) == "[]\n"


def test_a_second_look_says_and_makes_nothing(client: docker.DockerClient, volume: RuntimeVolume) -> None:
    said: list[str] = []
    assert ensure_runtime(client, report=said.append) is volume
    forget_runtime(client)
    assert ensure_runtime(client, report=said.append) == volume
    assert [line for line in said if "older than its recipe" not in line] == []


def test_an_image_that_was_looked_at_tells_of_itself_alone(
    client: docker.DockerClient, volume: RuntimeVolume, images: list[str]
) -> None:
    base = ensure_image(client, "gamebox/base", report=print)
    images.append(other := import_image(client, {}))
    ident = ensure_image(client, other, report=print)  # it is known, and is not the runtime's parent
    for seen in (("gamebox/base", base), (other, ident), ("gamebox/base", "sha256:unknown")):
        forget_runtime(client)
        assert ensure_runtime(client, report=print, image=seen[0], image_id=seen[1]) == volume


def forget_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recall and remember nothing: the test replaces what is read, of which the times of files do not tell."""
    monkeypatch.setattr(runtime, "recall", lambda: None)
    monkeypatch.setattr(runtime, "remember", lambda *_: None)


AGAIN = """
from sandbox.docker.images import runtime
from sandbox.docker.engine.client import connect
read = runtime.guest_files
runtime.guest_files = lambda: READING
print(runtime.ensure_runtime(connect(), report=print).name)
"""


def test_the_next_process_does_not_read_what_goes_into_it(volume: RuntimeVolume, tmp_path: Path) -> None:
    own_cache = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    for reading in ("read()", "1 / 0"):
        code = AGAIN.replace("READING", reading)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=own_cache)
        assert (done.stdout.strip(), done.stderr) == (volume.name, "")


@pytest.mark.parametrize("wrong", ["name", "parent", "content"])
def test_what_is_recalled_is_not_trusted(
    client: docker.DockerClient, volume: RuntimeVolume, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume was removed, or the base image was built anew since."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_runtime(client)
    assert ensure_runtime(client, report=print) == volume
    known = recall()
    assert known is not None
    remember(known._replace(**{wrong: "gamebox-runtime-none"}), take_snapshot())
    assert recall() != known
    forget_runtime(client)
    assert ensure_runtime(client, report=print) == volume
    assert recall() == known


@pytest.fixture
def edited(client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """The guest's code with one more module, as if somebody had just written it; its volume is removed afterwards."""
    guest = {**runtime.guest_files(), "gamebox_guest/edited.py": f"mark = {uuid.uuid4().hex!r}\n".encode()}
    monkeypatch.setattr(runtime, "guest_files", lambda: guest)
    forget_files(monkeypatch)
    forget_runtime(client)
    yield guest
    forget_runtime(client)
    remove_volumes(client, name_of(client, guest))


def name_of(client: docker.DockerClient, guest: dict[str, bytes]) -> str:
    return runtime._named(client, guest)[1]


def remove_volumes(client: docker.DockerClient, name: str) -> None:
    for part in (name, f"{name}-verified"):
        if part in volumes(client):
            client.api.remove_volume(part)


def volumes(client: docker.DockerClient) -> set[str]:
    return {found["Name"] for found in client.api.volumes()["Volumes"] or []}


def test_edited_code_is_a_new_volume(
    client: docker.DockerClient, volume: RuntimeVolume, edited: dict[str, bytes]
) -> None:
    made = ensure_runtime(client, report=print)
    assert made.name == name_of(client, edited) != volume.name
    said = run_python(client, made, "gamebox/base", "import gamebox_guest.edited as e; print(f'mark = {e.mark!r}')")
    assert said.encode() == edited["gamebox_guest/edited.py"]


def test_a_half_made_volume_is_not_used(client: docker.DockerClient, edited: dict[str, bytes]) -> None:
    """As a process leaves it that was killed while its container was filling the volume."""
    name = name_of(client, edited)
    labels = {runtime.RUNTIME_LABEL: name}
    client.api.create_volume(name, labels=labels)
    mount = docker.types.Mount("/there", name, type="volume")
    left = client.containers.create(
        "gamebox/base", ["sh", "-c", "echo bad >/there/manifest.json"], mounts=[mount], labels=labels
    )
    left.start()
    left.wait(timeout=60)
    said: list[str] = []
    made = ensure_runtime(client, report=said.append)
    assert made.name == name
    assert any("making" in line for line in said)
    examine(client, made, "gamebox/base")
    with pytest.raises(docker.errors.NotFound):
        left.reload()


def test_code_that_does_not_compile_never_becomes_a_runtime(
    client: docker.DockerClient, edited: dict[str, bytes]
) -> None:
    edited["gamebox_guest/edited.py"] += b"def broken(:\n"
    with pytest.raises(SandboxError) as caught:
        ensure_runtime(client, report=print)
    assert caught.value.code is ErrorCode.setup_failed
    assert "SyntaxError" in caught.value.message
    assert f"{name_of(client, edited)}-verified" not in volumes(client)
    containers = client.containers.list(
        all=True, ignore_removed=True, filters={"label": f"{runtime.RUNTIME_LABEL}={name_of(client, edited)}"}
    )
    assert containers == []


def test_files_that_arrive_damaged_are_noticed(
    client: docker.DockerClient, edited: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    intact = runtime._archive(edited)
    assert edited["gamebox_guest/edited.py"] in intact
    damaged = intact.replace(edited["gamebox_guest/edited.py"], b"#" * len(edited["gamebox_guest/edited.py"]))
    monkeypatch.setattr(runtime, "_archive", lambda guest: damaged)
    with pytest.raises(SandboxError, match=r"edited\.py is not what was sent"):
        ensure_runtime(client, report=print)
    assert f"{name_of(client, edited)}-verified" not in volumes(client)


MAKE = """
import sys
from sandbox.docker.images import recipes, runtime
from sandbox.docker.engine.client import connect
from sandbox.docker.engine.client import connect
guest = {**runtime.guest_files(), "gamebox_guest/edited.py": sys.argv[1].encode()}
runtime.guest_files = lambda: guest
runtime.recall, runtime.remember = lambda: None, lambda *_: None
print(runtime.ensure_runtime(connect(), report=lambda line: print(line, file=sys.stderr)).name)
"""


def test_several_processes_make_it_once(client: docker.DockerClient, volume: RuntimeVolume) -> None:
    command = [sys.executable, "-c", MAKE, f"mark = {uuid.uuid4().hex!r}"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ended = [process.communicate(timeout=280) for process in running]
    names = {out.strip() for out, _ in ended}
    assert len(names) == 1, ended
    assert sum(err.count("making the guest's runtime volume") for _, err in ended) == 1
    remove_volumes(client, names.pop())


@pytest.fixture
def other_libraries(monkeypatch: pytest.MonkeyPatch, client: docker.DockerClient) -> Iterator[None]:
    """As in a virtual environment with another patch version of a library that goes into the guest."""
    files = {**recipes.bundled_files(), "site/other.py": f"mark = {uuid.uuid4().hex!r}\n".encode()}
    monkeypatch.setattr(recipes, "bundled_files", lambda: files)
    forget_files(monkeypatch)
    forget_runtime(client)
    made = runtime._named(client, runtime.guest_files())
    yield
    forget_runtime(client)
    remove_volumes(client, made[1])
    remove_image(client, made[0].reference)


def test_two_virtual_environments_share_an_engine(
    client: docker.DockerClient, volume: RuntimeVolume, other_libraries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UX 1: two with another patch version of soupsieve built gamebox/runtime anew in turn, and each time a volume was left."""
    mine = runtime.runtime_image(client)
    said: list[str] = []
    other = ensure_runtime(client, report=said.append)
    assert other.name != volume.name
    assert f"building {mine.partition(':')[0]}" in said
    monkeypatch.undo()
    forget_runtime(client)
    said.clear()
    assert (ensure_runtime(client, report=said.append), said) == (volume, [])  # it found its own as it was
    assert runtime.runtime_image(client) != mine
    assert {other.name, volume.name} <= volumes(client)


def test_an_image_that_vanishes_under_the_volume_is_made_again(
    client: docker.DockerClient, edited: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D24: another Gamebox built the image anew between the look at it and its use."""
    answers = ["sha256:" + "0" * 64]
    monkeypatch.setattr(
        runtime, "ensure_image", lambda *args, **options: answers.pop() if answers else ensure_image(*args, **options)
    )
    assert ensure_runtime(client, report=print).name == name_of(client, edited)


def test_making_a_volume_does_not_hold_up_other_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lock was held for all engines while an image was built."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(client: object, *_: object) -> RuntimeVolume:
        if client is first:
            begun.set()
            assert go_on.wait(20)
        return RuntimeVolume("made")

    first, second = connect(), connect(59)
    assert first is not second
    monkeypatch.setattr(runtime, "_known", {})
    monkeypatch.setattr(runtime, "_find_or_make", slow)
    forget_files(monkeypatch)
    building = threading.Thread(target=ensure_runtime, args=(first,), kwargs={"report": print})
    building.start()
    assert begun.wait(10)
    assert ensure_runtime(second, report=print).name == "made"
    go_on.set()
    building.join()
    second.close()


def test_processes_with_other_homes_make_it_together(client: docker.DockerClient, tmp_path: Path) -> None:
    """Their locks are elsewhere, as those of two users; each removed what the other was making."""
    command = [sys.executable, "-c", MAKE, f"mark = {uuid.uuid4().hex!r}"]
    running = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"XDG_CACHE_HOME": str(home)}
        )
        for home in (tmp_path / name for name in "abc")
    ]
    ended = [process.communicate(timeout=280) for process in running]
    names = {out.strip() for out, _ in ended}
    assert len(names) == 1, ended
    remove_volumes(client, names.pop())


def test_what_others_have_begun_is_left_to_them(client: docker.DockerClient) -> None:
    name = f"gamebox-test-{uuid.uuid4().hex[:12]}"
    labels = {runtime.RUNTIME_LABEL: name}
    try:
        for maker, is_ours in ((runtime._maker(), True), ("another", False)):
            client.api.create_volume(name, labels={**labels, runtime.MAKER_LABEL: maker})
            assert runtime._claim(client, name) is is_ours
            remove_volumes(client, name)
            created = client.api.create_container(
                ensure_image(client, runtime.RUNTIME_IMAGE, report=print), command=["x"],
                labels={**labels, runtime.MAKER_LABEL: maker},
            )  # fmt: skip
            assert runtime._claim(client, name) is is_ours
            assert bool(client.api.containers(all=True, filters={"id": created["Id"]})) is not is_ours
            if not is_ours:
                client.api.remove_container(created["Id"])
            remove_volumes(client, name)
    finally:
        remove_volumes(client, name)


def test_of_two_that_begin_together_one_makes_it(client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each removed the containers of the others, three times, and gave up: another began just after its look."""
    name = f"gamebox-test-{uuid.uuid4().hex[:12]}"
    labels = {runtime.RUNTIME_LABEL: name, runtime.MAKER_LABEL: "another"}
    begun = runtime._begun

    def look(*given: Any) -> Any:
        seen = begun(*given)
        for made in (name, name + runtime._VERIFIED):
            client.api.create_volume(made, labels=labels)
        return seen

    monkeypatch.setattr(runtime, "_begun", look)
    try:
        assert not runtime._claim(client, name)
        volumes, _ = begun(client, name)
        assert {made: volume["Labels"] for made, volume in volumes.items()} == {
            name: labels, name + runtime._VERIFIED: labels
        }  # fmt: skip
    finally:
        remove_volumes(client, name)


def test_a_container_that_another_removes_meanwhile_does_not_matter(
    client: docker.DockerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"gamebox-test-{uuid.uuid4().hex[:12]}"
    gone = {"Id": "0" * 64, "State": "created", "Created": 0, "Labels": {runtime.MAKER_LABEL: "another"}}
    monkeypatch.setattr(runtime, "_begun", lambda *_: ({}, [gone]))
    try:
        assert runtime._claim(client, name)
    finally:
        remove_volumes(client, name)
