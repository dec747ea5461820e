"""Images that are odd, or made to break something: each works, or is refused at the start in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import docker
import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.docker.engine.client import connect
from sandbox.errors import ErrorCode, SandboxError
from sandbox.guest.commands.launch.start_problems import MACHINES

from .made_images import import_image, remove_image, static_busybox
from .own_engine import lacking

MAKE = Callable[..., DockerEnvironment]
IMAGE = Callable[..., str]
SMALL = Limits(memory_bytes=256 << 20)
pytestmark = pytest.mark.engine


@pytest.fixture
def image(client: docker.DockerClient) -> Iterator[IMAGE]:
    """Makes images with busybox in them, and removes them."""
    made: list[str] = []
    busybox = static_busybox()
    if busybox is None:
        lacking("needs a static busybox (Debian: busybox-static)")
    programs = {f"bin/{name}": "busybox" for name in ("sh", "cat", "touch", "id")}

    def make(files: dict[str, bytes] | None = None, links: dict[str, str] | None = None, **more: Any) -> str:
        own = {"bin/busybox": busybox.read_bytes(), **(files or {})}
        kept = {path: to for path, to in {**programs, **(links or {})}.items() if to and path not in own}
        made.append(import_image(client, own, links=kept, **more))
        return made[-1]

    yield make
    for name in made:
        remove_image(client, name)


# What is in the image or declared by it, and what the error names.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "users_in_a_pipe": ({"pipes": ["etc/passwd"]}, "/etc/passwd is not a file"),
    "groups_in_a_pipe_behind_a_link": ({"pipes": ["etc/p"], "links": {"etc/group": "p"}}, "/etc/group is not a file"),
    "tmp_is_a_link": ({"links": {"tmp": "bin"}}, "'/tmp' is a link"),
    "workspace_is_a_link": ({"links": {"workspace": "/etc"}}, "'/workspace' is a link"),
    "guest_is_a_link": ({"links": {".gamebox": "/bin"}}, "'/.gamebox' is a link"),
    "tmp_is_a_file": ({"files": {"tmp": b""}}, "'/tmp'"),
    "hosts_are_a_folder": ({"folders": ["etc", "etc/hosts"]}, "'/etc/hosts'"),
    "volume_in_the_workspace": ({"changes": ["VOLUME /workspace/data"]}, "volume at '/workspace/data'"),
}


@pytest.mark.parametrize(("what", "named"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_in_one_sentence(image: IMAGE, what: dict[str, Any], named: str) -> None:
    env = DockerEnvironment(image(**what), limits=SMALL)
    try:
        with pytest.raises(SandboxError) as caught:
            env.start()
    finally:
        env.close(wait=True)
    assert caught.value.code is ErrorCode.start_failed
    assert named in caught.value.message
    assert (caught.value.message.count("."), caught.value.message[-1:]) == (1 + named.count("."), ".")
    assert "image" in caught.value.hint


def test_volumes_of_an_image_are_read_only_and_gone_at_the_end(docker_env: MAKE, image: IMAGE) -> None:
    """The engine made them on its disk, writable and without a limit."""
    made = image({"data/file": b"content\n"}, folders=["data"], changes=["VOLUME /data", "VOLUME /tmp"])
    env = docker_env(made, limits=SMALL)
    assert env.run("cat /data/file; touch /tmp/new && cat /tmp/new").unwrap().output == "content\n"
    assert "Read-only file system" in env.run("touch /data/new").unwrap().output
    name = env.backend.name
    env.close(wait=True)
    left = connect().api.volumes(filters={"label": f"dev.gamebox.sandbox={name}"}).get("Volumes") or []
    assert not [each["Name"] for each in left]


def test_settings_of_an_image_change_nothing(docker_env: MAKE, image: IMAGE) -> None:
    labels = " ".join(f"dev.gamebox.{name}=evil" for name in ("sandbox", "owner", "keep", "name", "build.owner", "runtime"))
    settings = [
        'ENTRYPOINT ["/bin/false"]', 'CMD ["/none"]', "USER nobody", "WORKDIR /not/there", f"LABEL {labels}",
        "HEALTHCHECK --interval=1s CMD /bin/false", "ONBUILD RUN false", "EXPOSE 80",
        "ENV LD_PRELOAD=/x PYTHONHOME=/x PYTHONPATH=/x GLIBC_TUNABLES=glibc.malloc.check=3", f"ENV HUGE={'x' * 60_000}",
    ]  # fmt: skip
    env = docker_env(image(changes=settings), limits=SMALL)
    assert env.run("id; touch /tmp/a ~/b c && echo done").unwrap().output.splitlines() == ["uid=1000 gid=1000", "done"]


def _other_machine() -> bytes:
    """The beginning of an ELF file for another machine than this one."""
    number, _ = next(each for each in MACHINES.items() if each[1] == "s390x")
    return b"\x7fELF\x02\x02\x01" + bytes(9) + b"\x00\x02" + number.to_bytes(2, "big") + bytes(100)


SHELLS = {
    "a link to nothing": ({"links": {"bin/sh": "/none"}}, "This image has no shell"),
    "a pipe": ({"pipes": ["bin/sh"], "links": {"bin/sh": ""}}, "This image has no shell"),
    "a script without its interpreter": ({"files": {"bin/sh": b"#!/bin/none\n"}}, "could not be started: it needs '/bin/none'"),
    "for another machine": ({"files": {"bin/sh": _other_machine()}}, "it is a program for s390x"),
    "empty": ({"files": {"bin/sh": b""}}, "'/bin/sh' could not be started: Exec format error"),
}


@pytest.mark.parametrize(("what", "said"), SHELLS.values(), ids=SHELLS)
def test_a_shell_that_cannot_be_started_is_none(docker_env: MAKE, image: IMAGE, what: dict[str, Any], said: str) -> None:
    env = docker_env(image(**what), limits=SMALL)
    answer = env.run("echo x")
    assert answer.code is ErrorCode.shell_not_found  # type: ignore[union-attr]
    assert said in answer.error  # type: ignore[union-attr]
    assert env.run(argv=["/bin/busybox", "id"]).unwrap().output.startswith("uid=1000")
    assert env.write("file", "x").ok
