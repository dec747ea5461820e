"""The state of files: what changed, going back, trying in copies, and taking the result along; every file's content is checked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from sandbox import DockerEnvironment
from sandbox.errors import ErrorCode

from .subject import Kept, Remains, Subject, check

MOST_CHECKPOINTS = 3


def same_files(env: DockerEnvironment, files: dict[str, bytes]) -> None:
    """The workspace has these files with these bytes, and no others."""
    ran = env.run("find . -type f -print0 | xargs -0r sha256sum", session=None, keep_output_bytes=1 << 20).unwrap()
    found = {line[66:].removeprefix("./"): line[:64] for line in ran.output.splitlines()}
    expected = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    check(ran.exit_code == 0, ran)
    check(found == expected, f"other files: {sorted(set(found.items()) ^ set(expected.items()))[:6]}")


def every_file(s: Subject) -> None:
    same_files(s.env, s.files)


def _disturb(s: Subject) -> tuple[set[str], set[str], set[str]]:
    """Create, modify and delete a few files in all ways there are; the names of each."""
    old = sorted(s.files)
    modified = set(s.rng.sample(old, min(len(old), 2)))
    deleted = set(s.rng.sample(sorted(set(old) - modified), min(len(old) - len(modified), 1)))
    made = s.new_name()
    s.env.upload(data := s.rng.randbytes(2000), made).unwrap()
    s.files[made] = data
    for name in sorted(modified):
        s.env.run(f"printf more >> /workspace/{name}", session=None).unwrap()
        s.files[name] += b"more"
    for name in deleted:
        s.env.run(f"rm /workspace/{name}", session=None).unwrap()
        del s.files[name]
    return {made}, modified, deleted


def changes(s: Subject) -> None:
    name = f"mark{s.rng.randrange(10**9)}"
    s.env.mark(name).unwrap()
    expected = _disturb(s)
    seen = s.env.changes(name).unwrap()
    found = [
        {c.path.removeprefix("/workspace/") for c in seen.changes if c.change == kind and c.kind == "file"}
        for kind in ("created", "modified", "deleted")
    ]
    check(found == list(expected), f"{seen.to_text()}\nnot {expected}")
    s.env.delete_checkpoint(name).unwrap()
    none = s.env.changes(name)
    check(none.code is ErrorCode.checkpoint_not_found, none)  # type: ignore[union-attr]


def checkpoint(s: Subject) -> None:
    if len(s.checkpoints) >= MOST_CHECKPOINTS:
        ident = s.rng.choice(sorted(s.checkpoints))
        del s.checkpoints[ident]
        s.env.delete_checkpoint(ident).unwrap()
    kept = s.env.checkpoint().unwrap()
    check(kept.files >= len(s.files), kept)
    s.checkpoints[kept.id] = Kept(dict(s.files), dict(s.variables))
    listed = {c.id for c in s.env.checkpoints().unwrap().checkpoints}
    check(listed == set(s.checkpoints), f"{listed}, not {set(s.checkpoints)}")


def rollback(s: Subject) -> None:
    if not s.checkpoints:
        return
    ident = s.rng.choice(sorted(s.checkpoints))
    _disturb(s)
    if s.sleeping:
        refused = s.env.rollback(ident)
        check(refused.code is ErrorCode.commands_running, refused)  # type: ignore[union-attr]
        every_file(s)
    back = s.env.rollback(ident, kill=True).unwrap()
    check(set(back.killed) == set(s.sleeping) and not back.differs, back)
    s.sleeping = []
    s.files, s.variables = dict(s.checkpoints[ident].files), dict(s.checkpoints[ident].variables)
    every_file(s)
    s.census()


def fork(s: Subject) -> None:
    ident = s.rng.choice([None, *sorted(s.checkpoints)])
    files = s.files if ident is None else s.checkpoints[ident].files
    forks = s.env.fork(s.rng.randrange(1, 3), ident).unwrap().environments
    try:
        s.everything.update(Remains(env) for env in forks)
        for number, env in enumerate(forks):
            same_files(env, files)
            env.write("own", str(number)).unwrap()
            same_files(env, {**files, "own": str(number).encode()})
        every_file(s)
    finally:
        for env in forks:
            env.close()
    s.counts.add("forks", len(forks))


def patch(s: Subject) -> None:
    """What git makes of the patch is what is there."""
    if not s.checkpoints:
        return
    ident = s.rng.choice(sorted(s.checkpoints))
    _disturb(s)
    exported = s.env.export_patch(ident).unwrap()
    check(set(exported.left_out.values()) <= {"an empty folder"}, exported.left_out)
    with tempfile.TemporaryDirectory() as base:
        tree, diff = Path(base, "tree"), Path(base, "diff")
        for name, data in s.checkpoints[ident].files.items():
            Path(tree, name).parent.mkdir(parents=True, exist_ok=True)
            Path(tree, name).write_bytes(data)
        tree.mkdir(exist_ok=True)
        diff.write_bytes(exported.patch)
        if exported.patch:
            alone = {**os.environ, "GIT_CEILING_DIRECTORIES": base}  # no repository above it is meant
            command = ["git", "apply", "--whitespace=nowarn", str(diff)]
            applied = subprocess.run(command, cwd=tree, env=alone, capture_output=True, check=False)
            check(applied.returncode == 0, f"git apply: {applied.stderr.decode()}")
        found = {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*") if p.is_file()}
    differs = sorted(name for name in {*found, *s.files} if found.get(name) != s.files.get(name))
    check(not differs, f"the patch since {ident} makes other files: {differs[:6]}")
