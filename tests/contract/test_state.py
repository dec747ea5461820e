"""Changes, checkpoints, rollback and patches, the same on every environment."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandbox.environment.sandboxed import SandboxedEnvironment

from .backends import SHELL
from .checks import codes_of, done, refused


def of(changes: Any, folder: str) -> list[tuple[str, str]]:
    return [(c.change, c.path.removeprefix(folder + "/")) for c in changes.changes if c.path.startswith(folder + "/")]


def told(env: SandboxedEnvironment, command: str = "true") -> list[str]:
    """What notices say of changed files up to the next look at them, which a busy machine may put off to a later command."""
    answer, until, messages = env.run(command, session=None), time.monotonic() + 60, []
    while True:
        messages += [notice.message for notice in answer.notices if notice.code == "files_changed"]
        if done(env.changes("last")).since.endswith(f" {done(answer).id}"):
            return messages
        assert time.monotonic() < until
        answer = env.run("sleep 0.5", session=None)  # a look may take longer after a longer command


def test_changes_are_told_by_path_since_a_mark(env: SandboxedEnvironment, folder: str) -> None:
    env.write(f"{folder}/kept", "k").unwrap()
    env.write(f"{folder}/edited", "before").unwrap()
    env.write(f"{folder}/gone", "g").unwrap()
    mark = done(env.mark()).id
    assert of(done(env.changes(mark)), folder) == []
    env.write(f"{folder}/edited", "after!").unwrap()
    env.delete(f"{folder}/gone").unwrap()
    env.write(f"{folder}/sub/new", "n").unwrap()
    changed = done(env.changes(mark))
    assert of(changed, folder) == [
        ("modified", "edited"),
        ("deleted", "gone"),
        ("created", "sub"),
        ("created", "sub/new"),
    ]
    assert (changed.created, changed.modified, changed.deleted) == (2, 1, 1)


def test_changes_below_leftovers_are_summarised(env: SandboxedEnvironment, folder: str) -> None:
    mark = done(env.mark()).id
    env.write(f"{folder}/node_modules/a/b.js", "1").unwrap()
    env.write(f"{folder}/own", "1").unwrap()
    changed = done(env.changes(mark))
    assert of(changed, folder) == [("created", "own")]
    assert changed.summarised == {f"{folder}/node_modules": 3}
    assert (f"{folder}/node_modules/a/b.js") in {c.path for c in done(env.changes(mark, leftovers=True)).changes}


def test_at_most_so_many_changes_are_listed(env: SandboxedEnvironment, folder: str) -> None:
    mark = done(env.mark()).id
    for number in range(4):
        env.write(f"{folder}/{number}", "").unwrap()
    changed = done(env.changes(mark, max_changes=2))
    assert (len(changed.changes), changed.created, changed.truncated) == (2, 4, True)


def test_a_rollback_brings_everything_back(env: SandboxedEnvironment, folder: str) -> None:
    env.write(f"{folder}/kept", "k").unwrap()
    env.write(f"{folder}/edited", "before").unwrap()
    env.write(f"{folder}/sub/gone", "g").unwrap()
    env.make_dir(f"{folder}/empty").unwrap()
    made = done(env.checkpoint())
    assert made.files >= 3
    env.write(f"{folder}/edited", "after!").unwrap()
    env.delete(f"{folder}/sub", recursive=True).unwrap()
    env.delete(f"{folder}/empty").unwrap()
    env.write(f"{folder}/new/file", "n").unwrap()
    back = done(env.rollback(made.id))
    assert (back.removed, back.differs) == (1, ())
    assert done(env.read(f"{folder}/edited")).content == "before"
    assert done(env.read(f"{folder}/sub/gone")).content == "g"
    assert {e.path for e in done(env.list(folder)).entries} == {
        f"{folder}/{name}" for name in ("kept", "edited", "sub", "empty")
    }
    assert of(done(env.changes(made.id)), folder) == []
    again = done(env.rollback(made.id))
    assert again.removed == 0
    done(env.delete_checkpoint(made.id))


def test_checkpoints_share_what_is_the_same(env: SandboxedEnvironment, folder: str) -> None:
    env.write(f"{folder}/large", "x" * 100_000).unwrap()
    first = done(env.checkpoint("first"))
    env.write(f"{folder}/copy", "x" * 100_000).unwrap()
    second = done(env.checkpoint("second"))
    assert first.added_bytes >= 100_000 > second.added_bytes
    assert [c.id for c in done(env.checkpoints()).checkpoints][-2:] == ["first", "second"]
    assert done(env.delete_checkpoint("first")).freed_bytes == 0
    assert done(env.delete_checkpoint("second")).freed_bytes >= 100_000
    assert not {"first", "second"} & {c.id for c in done(env.checkpoints()).checkpoints}


def test_names_are_not_given_twice(env: SandboxedEnvironment) -> None:
    done(env.mark("taken"))
    answer = env.checkpoint("taken")
    assert not answer.ok
    assert answer.code == "invalid_arguments"
    for name in ("", "x" * 65, "start", "last"):
        assert not env.checkpoint(name).ok


def test_what_is_not_there_is_said(env: SandboxedEnvironment) -> None:
    for call in (env.rollback, env.delete_checkpoint, env.changes, env.export_patch):
        method: Callable[..., Any] = call
        refused(method("nothing"), "checkpoint_not_found", "nothing")


def test_a_mark_is_no_checkpoint_and_that_is_said(env: SandboxedEnvironment) -> None:
    mark = done(env.mark()).id
    refused(env.rollback(mark), "checkpoint_not_found", f"{mark!r} is a mark: it has no contents")
    refused(env.changes("nope"), "checkpoint_not_found", "no checkpoint or mark 'nope'", mark)


def test_a_mark_is_forgotten_when_it_is_deleted(env: SandboxedEnvironment) -> None:
    mark = done(env.mark("for-a-while")).id
    assert done(env.delete_checkpoint(mark)).freed_bytes == 0
    for call in (env.changes, env.delete_checkpoint):
        method: Callable[..., Any] = call
        refused(method(mark), "checkpoint_not_found", mark)
    done(env.mark("for-a-while"))
    done(env.delete_checkpoint("for-a-while"))


def test_a_patch_since_a_checkpoint(env: SandboxedEnvironment, folder: str) -> None:
    env.write(f"{folder}/a.txt", "one\ntwo\n").unwrap()
    made = done(env.checkpoint())
    env.edit(f"{folder}/a.txt", "two", "three").unwrap()
    env.write(f"{folder}/__pycache__/x.pyc", "left behind").unwrap()
    patch = env.export_patch(made.id)
    assert patch.ok
    assert patch.result.files == (f"{folder}/a.txt",)
    assert b"-two\n+three\n" in patch.result.patch
    assert patch.result.left_out == {f"{folder}/__pycache__": "left behind by tools"}
    done(env.delete_checkpoint(made.id))


@pytest.mark.needs(SHELL)
def test_a_run_tells_which_files_changed(env: SandboxedEnvironment, folder: str) -> None:
    env.write(f"{folder}/edited", "1").unwrap()
    env.write(f"{folder}/gone", "1").unwrap()
    told(env)
    (message,) = told(env, f"cd {folder} && echo 22 > edited && rm gone && mkdir sub && touch sub/new")
    assert "1 created, 1 modified, 1 deleted" in message
    assert f"+ {folder}/sub/new, ~ {folder}/edited, - {folder}/gone" in message
    last = done(env.changes("last"))
    assert of(last, folder) == [("created", "sub/new"), ("modified", "edited"), ("deleted", "gone")]
    assert told(env) == []


@pytest.mark.needs(SHELL)
def test_what_the_caller_changes_is_no_news(env: SandboxedEnvironment, folder: str) -> None:
    told(env)
    env.write(f"{folder}/a/b", "1").unwrap()
    env.move(f"{folder}/a", f"{folder}/c").unwrap()
    env.upload(b"data", f"{folder}/d").unwrap()
    env.delete(f"{folder}/c", recursive=True).unwrap()
    assert told(env) == []


@pytest.mark.needs(SHELL)
def test_the_notice_is_short_whatever_changes(env: SandboxedEnvironment, folder: str) -> None:
    name = "n" * 200
    told(env)
    (message,) = told(env, f"cd {folder} && for i in $(seq 50); do : > {name}$i; done; : > \"$(printf 'a\\nb')\"")
    assert "51 created" in message
    assert "(and 41 more)" in message
    assert "\n" not in message
    assert len(message) < 1500


@pytest.mark.needs(SHELL)
def test_a_rollback_waits_for_nobody_and_kills_when_asked(env: SandboxedEnvironment, folder: str) -> None:
    made = done(env.checkpoint())
    ran = done(env.run("sleep 60", background=True))
    failure = refused(env.rollback(made.id), "commands_running", ran.id)
    assert failure.next_tool == "kill"
    assert done(env.rollback(made.id, kill=True)).killed == (ran.id,)
    noticed = env.checkpoint()
    assert noticed.ok
    done(env.delete_checkpoint(made.id))


@pytest.mark.needs(SHELL)
def test_a_checkpoint_while_commands_run_says_so(env: SandboxedEnvironment, folder: str) -> None:
    ran = done(env.run("sleep 60", background=True))
    answer = env.checkpoint()
    assert "changed_meanwhile" in codes_of(answer)
    env.kill(ran.id).unwrap()


@pytest.mark.needs(SHELL)
def test_sessions_go_back_as_well(env: SandboxedEnvironment, folder: str) -> None:
    env.run(f"cd {folder}; export GREETING=before; f() {{ echo $GREETING; }}", session="s").unwrap()
    made = done(env.checkpoint())
    env.run("cd /; GREETING=after", session="s").unwrap()
    done(env.rollback(made.id))
    shown = done(env.run('basename "$PWD"; command -v f; echo $GREETING', session="s")).output
    assert shown.split()[0] == folder
    assert shown.split()[-1] == "before"
    done(env.end_session("s"))


def test_a_checkpoint_goes_into_a_file_and_comes_back(env: SandboxedEnvironment, folder: str, tmp_path: Path) -> None:
    env.write(f"{folder}/a", "then").unwrap()
    kept, file = done(env.checkpoint()).id, tmp_path / "saved.tar"
    assert done(env.save_checkpoint(kept, file)).size_bytes == file.stat().st_size
    refused(env.save_checkpoint(kept, file), "io_error", "saved.tar")
    refused(env.save_checkpoint("none", tmp_path / "other"), "checkpoint_not_found")
    assert not (tmp_path / "other").exists()
    done(env.delete_checkpoint(kept))
    env.write(f"{folder}/a", "now").unwrap()
    loaded = done(env.load_checkpoint(file, f"loaded/{folder}"))
    assert loaded.id == f"loaded/{folder}"
    done(env.rollback(loaded.id))
    assert done(env.read(f"{folder}/a")).content == "then"
    done(env.delete_checkpoint(loaded.id))
    file.write_bytes(file.read_bytes()[:700])
    refused(env.load_checkpoint(file), "unsafe_archive")
    refused(env.load_checkpoint(tmp_path / "none"), "io_error", "none")
