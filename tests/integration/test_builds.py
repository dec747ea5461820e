"""Builds of images: each step in a sandbox, its layer from the cache the next time, and nothing of it for others."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker
import pytest

from sandbox import DockerEnvironment, SandboxError
from sandbox.docker.builds.archives import ArchiveStore
from sandbox.docker.builds.build import Build, BuildLimits, BuiltImage
from sandbox.docker.builds.layers import ImageStore
from sandbox.docker.builds.log import LogEntry
from sandbox.docker.builds.room import Room
from sandbox.docker.builds.steps import Copy, Env, Plan, Run, Step, User, Workdir
from sandbox.errors import ErrorCode
from sandbox.limits import MIB, Limits

BASE = "gamebox/base"
SMALL = Limits(memory_bytes=256 * MIB, disk_bytes=128 * MIB, pids=64)


@pytest.fixture
def owner() -> Iterator[str]:
    """An owner of images, of whom nothing is left."""
    made = f"test-{uuid.uuid4().hex}"
    store = ImageStore(made)
    yield made
    store.remove_all()
    deadline = time.monotonic() + 60
    while store.bytes_used() or store.prune():  # an image goes when the last container of it is gone
        assert time.monotonic() < deadline
        store.prune()


@pytest.fixture
def archives(tmp_path: Path) -> ArchiveStore:
    return ArchiveStore(tmp_path / "archives", most_bytes=8 * MIB)


def packed(files: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, content in files.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size, member.mode = len(content), 0o640
            archive.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return target.getvalue()


def member(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def build(owner: str, *steps: Step, limits: BuildLimits | None = None, base: str = BASE, **options: Any) -> BuiltImage:
    return Build(Plan(base=base, steps=steps), owner=owner, limits=limits or BuildLimits(sandbox=SMALL), **options).run()


def refused(call: Callable[[], object]) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        call()
    return caught.value


WRITES = """grep -c of-the-build "$SSL_CERT_FILE"; echo "token $TOKEN"
echo "$BOTH, $TOKEN" > /home/agent/kept; echo w > /workspace/w; echo t > /tmp/t"""


def test_an_image_is_built_step_by_step_and_found_in_the_cache(
    client: docker.DockerClient, owner: str, archives: ArchiveStore, tmp_path: Path
) -> None:
    bundle = tmp_path / "authority.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\nof-the-build\n-----END CERTIFICATE-----\n", encoding="utf-8")
    link = member("src/link", tarfile.SYMTYPE, "app/main.txt")
    files = archives.put([packed({"src/app/main.txt": b"one", "src/link": link})])
    steps = (
        Workdir("/srv/new"),
        Env((("GREETING", "hello"),)),
        Copy(files, "src", "data", owner="agent"),
        Env((("BOTH", "${GREETING}-$GREETING"),)),
        Run(WRITES, user="agent"),
        User("agent"),
    )
    log: list[LogEntry] = []
    options: dict[str, Any] = {
        "env": {"TOKEN": "not-for-the-image"}, "archives": archives, "report": log.append, "ca_bundle": bundle,
    }  # fmt: skip
    first = build(owner, *steps, name="app", **options)
    again = build(owner, *steps, **options)
    assert (first.steps_run, first.steps_cached) == (2, 0)
    assert (again.steps_run, again.steps_cached, again.id) == (0, 2, first.id)
    assert [entry.text for entry in log if entry.step == "5"][1:3] == ["1", "token ***TOKEN***"]
    assert not any("not-for-the-image" in entry.text for entry in log)

    store = ImageStore(owner)
    config = client.api.inspect_image(first.id)["Config"]
    assert (config["User"], config["WorkingDir"], config["Cmd"]) == ("agent", "/srv/new", ["bash"])
    assert {"GREETING=hello", "BOTH=hello-hello"} <= set(config["Env"])
    assert not any(each.startswith(("LD_", "TOKEN", "http", "SSL", "APT")) for each in config["Env"])
    assert [each.names for each in store.list()] == [("app",)]
    with DockerEnvironment(store.reference("app"), limits=SMALL) as env:
        shown = env.run("cat ~/kept /workspace/w; cd /srv/new; stat -c '%U %a' data/app/main.txt; cat data/link; touch ~/a")
        assert shown.unwrap().stdout == "hello-hello, not-for-the-image\nw\nagent 640\none"
        assert env.run("grep -rls of-the-build /root /run /etc /home /srv").unwrap().stdout == ""

    # A forced step makes another layer, and all later ones with it.
    forced = build(owner, *steps[:4], Run("true", force=True), Run("echo more > /more"), **options)
    assert (forced.steps_run, forced.steps_cached) == (2, 1)
    used = store.bytes_used()
    assert store.prune() > 0
    assert 0 < store.bytes_used() < used
    assert build(owner, *steps, **options).steps_cached == 2


def test_images_of_another_owner_are_missing(owner: str) -> None:
    made = build(owner, Run("echo mine > /mine"), name="mine")
    other = ImageStore(f"{owner}-other")
    assert other.find(made.id) is None
    assert other.find("mine") is None
    assert other.list() == ()
    assert not other.remove("mine")
    assert refused(lambda: other.name(made.id, "mine")).code is ErrorCode.image_not_found
    for base in (made.id, ImageStore(owner).reference("mine")):
        assert refused(lambda base=base: build(other.owner, Run("true"), base=base)).code is ErrorCode.image_not_found  # type: ignore[misc]
    on_own = build(owner, base=made.id)
    assert on_own.added_bytes == made.added_bytes
    assert ImageStore(owner).bytes_used() == made.added_bytes


def test_a_step_that_fails_is_shown_with_its_last_lines(owner: str) -> None:
    log: list[LogEntry] = []
    noisy = "printf '\\033[31mred\\033[0m 10%%\\r50%%\\r'; sleep 300 & echo '\\033]0;title\\007end'; exit 3"
    failed = refused(lambda: build(owner, Env((("A", "1"),)), Run(noisy), report=log.append))
    assert failed.code is ErrorCode.image_build_failed
    assert failed.message.startswith("Step 2 (RUN printf")
    assert "exit status 3" in failed.message
    assert failed.result["step"] == "2"
    assert failed.result["exit_code"] == 3
    assert failed.result["log"][-1].endswith("end")
    assert not any(character in entry.text for entry in log for character in "\x1b\r\x07")
    assert log[-1].level == "error"
    missing = refused(lambda: build(owner, Run("no-such-command")))
    assert "install it in an earlier step" in missing.hint
    assert refused(lambda: build(owner, User("nobody-here"), Run("true"))).code is ErrorCode.image_build_failed


def test_a_step_that_does_not_end_is_ended(client: docker.DockerClient, owner: str) -> None:
    names: list[str] = []
    limits = BuildLimits(sandbox=SMALL, step_timeout_seconds=0.5)

    def note(name: str, _: bool) -> None:
        names.append(name)

    late = refused(lambda: build(owner, Run("while :; do :; done"), limits=limits, on_sandbox=note))
    assert late.code is ErrorCode.timeout
    assert late.result["step"] == "1"

    running = threading.Event()
    endless = Plan(base=BASE, steps=(Run("echo started; sleep 1000"),))
    limits = BuildLimits(sandbox=SMALL)

    def report(entry: LogEntry) -> None:
        if entry.text == "started":
            running.set()

    started = Build(endless, owner=owner, limits=limits, report=report, on_sandbox=note)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(started.run)
        running.wait(60)
        started.cancel()
        assert refused(ended.result).code is ErrorCode.cancelled
    assert len(names) == 4
    assert not {f"/{name}" for name in names} & {each["Names"][0] for each in client.api.containers(all=True)}


def test_daemons_are_in_no_layer_and_what_they_write_is_whole(owner: str) -> None:
    daemon = "(trap '' TERM HUP; while :; do echo x >> /log; done) & setsid sleep 1000 & echo done"
    log: list[LogEntry] = []
    made = build(owner, Run(daemon), name="daemons", report=log.append)
    assert any("left running" in entry.text for entry in log)
    with DockerEnvironment(made.id, limits=SMALL) as env:
        assert env.run("cat /log | tr -d 'x\\n' | wc -c; pgrep sleep | wc -l").unwrap().stdout.split() == ["0", "0"]


def test_an_image_has_a_largest_size(owner: str) -> None:
    small = BuildLimits(sandbox=SMALL, image_bytes=8 * MIB)
    # For a quota, what is in the cache already does not count.
    steps = (Run("head -c 1M /dev/zero > /first"), Run("head -c 2M /dev/zero > /second"))
    build(owner, steps[0], limits=BuildLimits(sandbox=SMALL, room=Room(MIB)))
    over = refused(lambda: build(owner, *steps, limits=BuildLimits(sandbox=SMALL, room=Room(MIB))))
    assert (over.code, over.result["step"]) == (ErrorCode.capacity, "2")
    ImageStore(owner).remove_all()
    # The engine would write its holes as zeros.
    sparse = refused(lambda: build(owner, Run("for i in 1 2 3; do truncate -s 900M /hole$i; done"), limits=small))
    assert sparse.code is ErrorCode.capacity
    # A limit of the sandbox is the reason that is given, with what can be done about it.
    limits = BuildLimits(sandbox=dataclasses.replace(SMALL, file_bytes=MIB))
    file = refused(lambda: build(owner, Run("head -c 2M /dev/zero > /file"), limits=limits))
    assert "1.0 MiB" in file.message
    # What is written before the sandbox looks at its disk is too much as well.
    disk = refused(lambda: build(owner, Run("head -c 140M /dev/zero > /file")))
    assert "a step may write 128.0 MiB" in disk.message or "disk limit of 128.0 MiB" in disk.message
    assert ImageStore(owner).bytes_used() == 0


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        pytest.param({"../up": b"x"}, "leads out", id="up"),
        pytest.param({"/etc/x": b"x"}, "leads out", id="absolute"),
        pytest.param({"d": member("d", tarfile.CHRTYPE)}, "not a file", id="device"),
        pytest.param({"p": member("p", tarfile.FIFOTYPE)}, "not a file", id="fifo"),
        pytest.param({"l": member("l", tarfile.SYMTYPE, "/etc"), "l/passwd": b"x"}, "not a folder", id="below_a_link"),
        pytest.param({"h": member("h", tarfile.LNKTYPE, "/etc/shadow")}, "leads out", id="hard_link"),
        pytest.param({"h": member("h", tarfile.LNKTYPE, "gone")}, "leads", id="hard_link_to_nothing"),
    ],
)
def test_an_archive_that_lies_is_refused(
    hostile: Callable[[bytes], SandboxError], files: dict[str, Any], reason: str
) -> None:
    assert reason in hostile(packed(files)).message


def test_an_archive_that_is_none_or_too_large_is_refused(hostile: Callable[[bytes], SandboxError]) -> None:
    assert hostile(b"no archive").code is ErrorCode.image_build_failed
    assert "may write" in hostile(packed({f"zeros{n}": bytes(80 * MIB) for n in range(2)})).message


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bytes], SandboxError]]:
    """What a step says to an archive; all of them in one sandbox, which none may have harmed."""
    from sandbox.docker.builds.configuration import Configuration
    from sandbox.docker.builds.log import BuildLog
    from sandbox.docker.builds.step_sandbox import StepFailedError, Surroundings, step_sandbox
    from sandbox.network.policy import Network
    from sandbox.pipe.watching import CancelToken

    folder = tmp_path_factory.mktemp("archives")
    around = Surroundings(
        limits=SMALL, network=Network.none(), ceiling=None, env={}, ca_bundle=None, runtime=None, on_sandbox=lambda *_: None
    )
    log = BuildLog(lambda _: None, MIB)
    with step_sandbox(around, BASE, log, CancelToken(), time.monotonic() + 100) as sandbox:

        def say(archive: bytes) -> SandboxError:
            (folder / "archive").write_bytes(archive)
            try:
                sandbox.copy(Copy("0" * 64, ".", "/copied/"), folder / "archive", Configuration(), 20)
            except StepFailedError as error:
                return SandboxError(error.code, error.reason)
            raise AssertionError("it was copied")

        yield say
        assert sandbox.env.run("ls -A /up /copied/*; grep -c root /etc/passwd").unwrap().stdout == "1\n"


def test_builds_that_need_the_same_layer_make_it_once(owner: str) -> None:
    def one(_: int) -> BuiltImage:
        return build(owner, Run("sleep 0.3; echo once > /once"))

    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(one, range(3)))
    assert sum(each.steps_run for each in made) == 1
    assert len({each.id for each in made}) == 1


KILLED = """
import sys
from sandbox.docker.builds.build import Build
from sandbox.docker.builds.steps import Plan, Run
plan = Plan(base="gamebox/base", steps=(Run("echo started; sleep 1000"),))
Build(plan, owner=sys.argv[1], report=lambda e: print(e.text, flush=True), on_sandbox=lambda i, on: print(i, flush=True)).run()
"""


def test_nothing_is_left_of_a_build_that_was_killed(client: docker.DockerClient, owner: str) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, owner], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        name = next(line for line in lines if line.startswith("gamebox-")).strip()
        assert next(line for line in lines if line == "started\n")
        os.kill(process.pid, signal.SIGKILL)
        process.stdout.read()
    deadline = time.monotonic() + 60
    while any(f"/{name}" in each["Names"] for each in client.api.containers(all=True)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # Its key is free.
    assert build(owner, Run("echo started")).steps_run == 1


def test_the_start_command_is_tried(owner: str) -> None:
    def plan(ready: str) -> Plan:
        return Plan(base=BASE, start_command="echo up; touch /tmp/up; sleep 1000", ready_command=ready)

    log: list[LogEntry] = []
    limits = BuildLimits(sandbox=SMALL, ready_seconds=30)
    Build(plan("test -f /tmp/up"), owner=owner, limits=limits, report=log.append, run_start=True).run()
    assert "up" in [entry.text for entry in log if entry.step == "finalize"]
    limits = BuildLimits(sandbox=SMALL, ready_seconds=0.1)
    failed = refused(lambda: Build(plan("false"), owner=owner, limits=limits, run_start=True).run())
    assert failed.result["step"] == "finalize"
