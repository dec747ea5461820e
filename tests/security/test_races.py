"""Every operation on files while a command exchanges a folder with a link that leads out, thousands of times a second."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox import DockerEnvironment

from .test_paths import FLIP, SECRET

pytestmark = pytest.mark.engine

_numbers = itertools.count()
OPERATIONS: dict[str, Callable[[DockerEnvironment, Path], Any]] = {
    "read": lambda env, _: env.read("race/dir/passwd"),
    "read bytes": lambda env, _: env.read("race/dir/passwd", offset=0, max_bytes=50),
    "write": lambda env, _: env.write("race/dir/written", "inside"),
    "edit": lambda env, _: env.edit("race/dir/edited", "inside", "inside"),
    "list": lambda env, _: env.list("race/dir"),
    "search": lambda env, _: env.search("root:", path="race/dir"),
    "make_dir": lambda env, _: env.make_dir(f"race/dir/made{next(_numbers)}"),
    "move in": lambda env, _: env.move("race/spare", "race/dir/spare", overwrite=True),
    "move out": lambda env, _: env.move("race/dir/spare", "race/spare", overwrite=True),
    "delete": lambda env, _: env.delete("race/dir/written", recursive=True),
    "upload": lambda env, _: env.upload(b"inside", "race/dir/uploaded"),
    "upload tree": lambda env, folder: env.upload(folder / "tree", f"race/dir/tree{next(_numbers)}"),
    "download": lambda env, _: env.download("race/dir/passwd"),
    "download tree": lambda env, folder: env.download("race/dir", to=folder / f"down{next(_numbers)}"),
}


@pytest.fixture
def racing(env: DockerEnvironment) -> Iterator[DockerEnvironment]:
    env.write("/tmp/flip.c", FLIP).unwrap()
    prepare = (
        "gcc -O2 -o /tmp/flip /tmp/flip.c; rm -rf race; mkdir -p race/dir; echo inside > race/dir/passwd; "
        "echo inside > race/dir/edited; echo inside > race/spare; ln -sfn /etc race/link"
    )
    env.run(prepare, timeout_seconds=60, session=None).unwrap()
    flipping = env.run("exec /tmp/flip", background=True).unwrap().id
    yield env
    env.kill(flipping).unwrap()
    env.run("rm -rf race", session=None).unwrap()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_in_a_race(racing: DockerEnvironment, name: str, tmp_path: Path) -> None:
    """Threat: between the check of a path and its use it leads somewhere else, and the operation leaves the roots."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("inside")
    state = "sha256sum /etc/passwd; ls -a /etc | sort | sha256sum"
    before = racing.run(state, session=None).unwrap().output
    for _ in range(150):
        answer = OPERATIONS[name](racing, tmp_path)
        assert SECRET not in str(answer)
        if answer.ok and name == "list":
            assert "shadow" not in str(answer.result)
        if not answer.ok:
            assert answer.code != "sandbox_unavailable", answer
    assert racing.run(state, session=None).unwrap().output == before
    for path in tmp_path.rglob("*"):
        assert path.is_symlink() or path.is_dir() or SECRET not in path.read_text()
