"""Volumes that images declare, failures that the engine words, and what a guest says of links."""

from __future__ import annotations

import pytest

from sandbox.docker.container.image_problems import check_links, explain_failed_start, volume_mounts
from sandbox.errors import ErrorCode, SandboxError

TAKEN = {"/workspace", "/home/agent", "/tmp", "/var/tmp", "/run/gamebox", "/.gamebox"}


def test_volumes_are_mounted_read_only_under_names_of_the_sandbox() -> None:
    found = volume_mounts(["/data", "//srv/./x/", "/tmp//", "/a/../workspace", "/.gamebox/"], TAKEN, "gamebox-1")
    assert [(each["Target"], each["Source"], each["ReadOnly"]) for each in found] == [
        ("/data", "gamebox-1-0", True), ("/srv/x", "gamebox-1-1", True),
    ]  # fmt: skip
    assert {str(each["VolumeOptions"]["Labels"]) for each in found} == {"{'dev.gamebox.sandbox': 'gamebox-1'}"}


@pytest.mark.parametrize(
    "path",
    ["/", "//", "/..", "data", "../data", "/proc", "/proc/1", "/sys/fs/cgroup", "/dev", "/dev/shm", "/.gamebox/bin", "/workspace/x",
     "/home", "/var", "/run", "/tmp/../home", "/home/agent/.cache", "/x/../proc"],
)  # fmt: skip
def test_a_volume_in_or_around_what_the_sandbox_needs_is_refused(path: str) -> None:
    with pytest.raises(SandboxError) as caught:
        volume_mounts([path], TAKEN, "gamebox-1")
    assert caught.value.code is ErrorCode.start_failed
    assert repr(path) in caught.value.message
    assert "VOLUME" in caught.value.hint


@pytest.mark.parametrize("path", ["/home2", "/proc2", "/workspace-x", "/tmpx", "/var/lib/data", "/...", "/.gamebox2"])
def test_a_name_that_only_begins_alike_is_not(path: str) -> None:
    assert [each["Target"] for each in volume_mounts([path], TAKEN, "gamebox-1")] == [path]


def test_a_place_that_cannot_be_mounted_is_named() -> None:
    words = 'runc create failed: error mounting "/var/lib/docker/x" to rootfs at "/tmp": mount x:/tmp: not a directory: unknown'
    found = explain_failed_start(SandboxError(ErrorCode.start_failed, words, ""), "some/image")
    assert found.message == "The image 'some/image' has something at '/tmp' that the sandbox cannot mount over."
    other = SandboxError(ErrorCode.start_failed, "no runtime", "")
    assert explain_failed_start(other, "some/image") is other
    elsewhere = SandboxError(ErrorCode.engine_error, words, "")
    assert explain_failed_start(elsewhere, "some/image") is elsewhere


@pytest.mark.parametrize("said", [{}, {"links": []}, {"links": None}, {"links": "x"}])
def test_no_links_are_no_problem(said: dict[str, object]) -> None:
    check_links(said)


def test_a_link_is_named_whatever_the_guest_says() -> None:
    with pytest.raises(SandboxError, match="is a link") as caught:
        check_links({"links": ["/tmp\n\udcff" * 1000, 3]})
    assert len(caught.value.message) < 250
    assert "\n" not in caught.value.message
