"""Labels that anybody may write are read with suspicion, and never end a listing or a sweep."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sandbox import ErrorCode, SandboxError
from sandbox.cli.kept import _row
from sandbox.docker.container import removal
from sandbox.docker.container.create import BOOT_LABEL, HOST_LABEL, IMAGE_LABEL, OWNER_LABEL, owner
from sandbox.docker.container.enforcement import boot_id
from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.docker.kept import attach as reaching
from sandbox.docker.kept import inventory, kept, orphans, owners
from sandbox.docker.kept import labels as marks
from sandbox.docker.spec import SandboxSpec
from sandbox.guest.protocol.wire import PROTOCOL

IDENT = "gamebox-0123456789abcdef"
SPEC = SandboxSpec().to_data()
GOOD = {
    "protocol": PROTOCOL,
    "token": "00" * 32, "seconds": 1, "spec": SPEC,
    "disk": {"kind": "memory", "places": [], "watched": [], "why": ""}, "names": [],
}  # fmt: skip


def listed(labels: dict[str, str], state: str = "created") -> dict[str, Any]:
    ours = {SANDBOX_LABEL: IDENT, HOST_LABEL: socket.gethostname(), BOOT_LABEL: boot_id()}
    return {
        "Id": "a" * 64, "Names": [f"/{IDENT}"], "Image": "i", "State": state, "Created": 1, "Labels": ours | labels
    }  # fmt: skip


class Engine:
    """Lists one container, whatever is asked for, and takes note of what is done to it."""

    def __init__(self, container: dict[str, Any]) -> None:
        self.api = self
        self.container = container
        self.done: list[str] = []

    def containers(self, **_: object) -> list[dict[str, Any]]:
        return [self.container]

    def volumes(self, **_: object) -> dict[str, list[Any]]:
        return {"Volumes": []}

    def remove_container(self, container_id: str, **_: object) -> None:
        self.done.append(f"remove {container_id}")

    def unpause(self, container_id: str) -> None:
        self.done.append(f"unpause {container_id}")


NAMESPACE = owner(os.getpid()).partition("/")[0]
NONSENSE = [
    {marks.KEEP_LABEL: json.dumps(GOOD | {"spec": SPEC | {"limits": []}})},
    {marks.KEEP_LABEL: json.dumps(GOOD | {"disk": {"kind": "x", "places": [[1, 2, 3]], "watched": [], "why": ""}})},
    {marks.KEEP_LABEL: json.dumps(GOOD | {"spec": SPEC | {"network": "host"}})},
    {marks.KEEP_LABEL: json.dumps(GOOD | {"spec": []})},
    {marks.KEEP_LABEL: json.dumps(GOOD | {"seconds": "nan"})},
    {marks.KEEP_LABEL: json.dumps(GOOD | {"seconds": 10**400})},
    {marks.KEEP_LABEL: json.dumps(GOOD | {"spec": SPEC | {"limits": {"memory_bytes": -1}}})},
    {marks.KEEP_LABEL: json.dumps(GOOD | {"names": ["a\nb.internal"]})},
    {marks.KEEP_LABEL: json.dumps(GOOD | {"names": "llm.internal"})},
    {marks.KEEP_LABEL: "[" * 60_000},
    {marks.KEEP_LABEL: "[]"},
    {marks.STARTED_LABEL: "abc"},
    {OWNER_LABEL: f"{NAMESPACE}/²/3"},
    {OWNER_LABEL: f"{NAMESPACE}/{'9' * 5000}/3"},
    {marks.PID_LABEL: "²"},
]


@pytest.mark.parametrize("labels", NONSENSE, ids=lambda labels: "".join(labels.values())[:30])
def test_nonsense_is_passed_over(labels: dict[str, str]) -> None:
    for state in ("created", "paused"):
        orphans.sweep(Engine(listed(labels, state)))  # type: ignore[arg-type]
        (found,) = inventory.sandboxes(Engine(listed(labels, state)))  # type: ignore[arg-type]
        assert found.ident == IDENT
    if marks.KEEP_LABEL in labels and "nan" not in labels[marks.KEEP_LABEL]:
        with pytest.raises(SandboxError):
            kept.find(Engine(listed(labels)), IDENT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ident", ["", "a\0b", "a3-victim", "../images/x:1", "../volumes/v", IDENT + "\n", IDENT.upper(), "a" * 5000]
)
def test_a_name_that_is_none_of_ours(ident: str) -> None:
    for called in (f"/{IDENT}", f"/{ident}"):
        container = listed({SANDBOX_LABEL: ident, OWNER_LABEL: f"{NAMESPACE}/4194305/3"}) | {"Names": [called]}
        engine = Engine(container)
        orphans.sweep(engine)  # type: ignore[arg-type]
        assert engine.done == []
        assert inventory.sandboxes(engine) == []  # type: ignore[arg-type]
        assert not kept.matches(container, "aaaa")
    with pytest.raises(ValueError, match="not the name"):
        removal.remove(ident)


def test_one_that_is_called_otherwise_than_it_says() -> None:
    assert marks.ident(listed({})) == IDENT
    assert marks.ident(listed({}) | {"Names": ["/other"]}) is None
    assert marks.ident({"Id": "a", "Names": None, "Labels": None}) is None


def test_an_empty_label_is_none() -> None:
    (found,) = inventory.sandboxes(Engine(listed({marks.KEEP_LABEL: "", marks.NAME_LABEL: "", OWNER_LABEL: ""})))  # type: ignore[arg-type]
    assert (found.kept, found.name, found.state) == (False, None, "owned")


def test_what_a_dead_owner_left_is_still_swept() -> None:
    engine = Engine(listed({OWNER_LABEL: f"{NAMESPACE}/4194305/3"}))
    orphans.sweep(engine)  # type: ignore[arg-type]
    assert engine.done[0] == f"remove {'a' * 64}"
    assert kept.read_kept(listed({marks.KEEP_LABEL: json.dumps(GOOD)})).ident == IDENT


def test_an_owner_that_cannot_be_looked_at_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    living = owner(os.getppid())
    read = Path.read_text

    def no_descriptors(path: Path, *args: Any, **options: Any) -> str:
        if path == Path(f"/proc/{os.getppid()}/stat"):
            raise OSError(errno.EMFILE, "Too many open files")
        return read(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", no_descriptors)
    engine = Engine(listed({OWNER_LABEL: living}))
    orphans.sweep(engine)  # type: ignore[arg-type]
    assert not [each for each in engine.done if each.startswith("remove ")]


def test_a_listing_has_one_printable_line_for_each() -> None:
    labels = {IMAGE_LABEL: "x\x1b]0;pwned\x07\nforged", HOST_LABEL: "there\x1b[31m\nrow", marks.NAME_LABEL: "a\nb"}
    (found,) = inventory.sandboxes(Engine(listed(labels)))  # type: ignore[arg-type]
    row = _row(found)
    assert all(text.isprintable() for text in row)
    assert row[1] == "-"


@pytest.mark.parametrize("error", [ConnectionResetError("the stream ended"), BrokenPipeError("gone"), OSError("x")])
def test_a_stream_that_ends_at_once_is_worded(error: OSError, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def cut(*_: object) -> None:
        raise error

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(reaching, "reach", cut)
    engine = Engine(listed({}))
    monkeypatch.setattr(Engine, "inspect_container", lambda *_: {"State": {}}, raising=False)
    for take_over in (False, True):
        with pytest.raises(SandboxError) as told:
            reaching.take(engine, kept.read_kept(listed({marks.KEEP_LABEL: json.dumps(GOOD)})), take_over)  # type: ignore[arg-type]
        assert told.value.code is ErrorCode.sandbox_unavailable
        owner = owners.owner_of(IDENT)
        assert owner is not None
        assert not owner.alive
