"""What the actions of a recorded run have made of the files is in its log, and changes neither answers nor the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent import Agent, FunctionCallingLanguage, Goal, ScriptedModel, standard_registry
from agent.record.file_changes import MOST_CHARS, ChangesEnvironment, _cut
from agent.record.resume import execute_recorded
from agent.record.store import EventLog, RunRecord, record_of
from agent.views.trajectory.run_file import from_dict, to_dict
from sandbox import Limits, LocalEnvironment


def run(command: str, **more: Any) -> dict[str, Any]:
    return {"tool": "run", "args": {"command": command, **more}}


FINISH = {"tool": "finish", "args": {"summary": "done"}}


def recorded(folder: Path, script: list[Any], *, wrapped: bool = True) -> RunRecord:
    (folder / "work").mkdir()
    (folder / "work" / "a.txt").write_text("one\ntwo\n")
    with EventLog(folder / "runs.db") as log, LocalEnvironment(workspace=folder / "work") as environment:
        environment.secret("TOKEN", "hush-hush-hush")
        around = ChangesEnvironment(environment) if wrapped else environment
        agent = Agent([Goal("g")], FunctionCallingLanguage(), standard_registry(), ScriptedModel(script), around)
        done = execute_recorded(agent, "change", log, run="r")
        assert done.status == "finished", done.reason
        return record_of(log, "r")


def test_each_step_has_what_it_changed(tmp_path: Path) -> None:
    script = [
        run("sed -i s/two/2/ a.txt"), run("cat a.txt; exit 3"), {"tool": "read", "args": {"path": "a.txt"}},
        {"tool": "write", "args": {"path": "a.txt", "content": "new\n"}}, run("rm a.txt; echo hush-hush-hush > b"), run("true"),
        FINISH,
    ]  # fmt: skip
    record = recorded(tmp_path, script)
    patches = [step.changed.patch if step.changed else None for step in record.steps]
    assert [patch is not None for patch in patches] == [True, False, False, True, True, False, False]
    assert "-two\n+2\n" in str(patches[0])
    assert "-one\n-2\n+new\n" in str(patches[3])
    assert "deleted file" in str(patches[4])
    assert "hush" not in str(patches[4])
    run_again = from_dict(to_dict(record))
    assert [bool(step.changes) for step in run_again.steps] == [patch is not None for patch in patches]
    assert from_dict(to_dict(run_again)).steps[0].changes == str(patches[0]).rstrip("\n")


def test_what_goes_on_is_told_with_the_next_action(tmp_path: Path) -> None:
    go = tmp_path / "go"
    late = run(f"until [ -e {go} ]; do sleep 0.02; done; echo late > late", background=True)
    record = recorded(tmp_path, [late, run(f"touch {go}; until [ -s late ]; do sleep 0.02; done"), FINISH])
    assert [step.changed is not None for step in record.steps] == [False, True, False]
    assert record.steps[1].changed is not None
    assert "+late" in record.steps[1].changed.patch


def test_answers_are_the_same_without_it(tmp_path: Path) -> None:
    def told(name: str, *, wrapped: bool) -> list[Any]:
        (tmp_path / name).mkdir()
        record = recorded(tmp_path / name, [run("sed -i s/two/2/ a.txt; cat a.txt"), FINISH], wrapped=wrapped)
        return [(step.tool, (step.envelope or {}).get("result", {}).get("output")) for step in record.steps]

    assert told("with", wrapped=True) == told("without", wrapped=False)


def test_a_diff_that_is_too_long_is_cut_between_files() -> None:
    one = "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -0,0 +1 @@\n" + "+a line\n" * (MOST_CHARS // 80)
    assert _cut(one * 9) == (one * 9, ())
    kept, said = _cut(one * 12)
    assert len(kept) <= MOST_CHARS
    whole = kept.count("diff --git ")
    assert kept == one * whole
    assert said == (f"{12 - whole} more files: the diff has {len(one) * 12} characters",)
    assert _cut("x" * (MOST_CHARS + 1))[0] == ""


def test_files_that_cannot_be_kept_are_said_so(tmp_path: Path) -> None:
    """A store without room: the run goes on, and the log says what it does not know."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "big").write_bytes(b"x" * 100_000)
    environment = LocalEnvironment(workspace=tmp_path / "work", limits=Limits(checkpoint_bytes=1))
    with EventLog(tmp_path / "runs.db") as log, environment:
        agent = Agent(
            [Goal("g")], FunctionCallingLanguage(), standard_registry(), ScriptedModel([run("echo x > y"), FINISH]),
            ChangesEnvironment(environment),
        )  # fmt: skip
        assert execute_recorded(agent, "change", log, run="r").status == "finished"
        changed = record_of(log, "r").steps[0].changed
    assert changed is not None
    assert (changed.patch, len(changed.left_out)) == ("", 1)
    assert "could not be" in changed.left_out[0]
