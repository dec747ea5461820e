"""The agents of the hub at work in real sandboxes, each with a scripted brain where it asks a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent import Budget, RunStatus, ScriptedModel, hub
from agent.core.run import AgentRun
from agent.hub import Hub, Setting, build
from agent.hub.agents.dummy import first as dummy
from agent.hub.agents.dummy.expecting import Expected, ExpectingScript
from sandbox import DockerEnvironment, Limits
from sandbox.environment.base import Environment
from tests.programs import run_gamebox

pytestmark = pytest.mark.engine


def call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def run(command: str, **more: Any) -> dict[str, Any]:
    return call("run", command=command, **more)


@pytest.fixture(scope="module")
def box() -> Iterator[DockerEnvironment]:
    with DockerEnvironment(limits=Limits(memory_bytes=1 << 30, pids=256)) as env:
        yield env


@pytest.fixture
def repo(box: DockerEnvironment) -> DockerEnvironment:
    """The sandbox with a small repository in it, and nothing else."""
    made = (
        "rm -rf /workspace/* /workspace/.[a-z]*; git init -q . && git config user.email a@example.com && git config user.name A\n"
        "printf 'def add(a, b):\\n    return a - b\\n' >calc.py; echo '# A libary for sums' >README.md\n"
        "printf 'from calc import add\\n\\nassert add(2, 2) == 4\\n' >test_calc.py; git add -A; git commit -qm begun"
    )
    done = box.run(made, session=None).unwrap()
    assert done.exit_code == 0, done.output
    return box


def ran(env: Environment, name: str, *steps: Any, **inputs: Any) -> AgentRun:
    model = ScriptedModel(steps)
    agent = build(hub.load(name), Setting(environment=env, hub=hub.default(), brain=model, inputs=inputs))
    outcome = agent.execute(str(inputs.get("task", "go")))
    assert model.remaining == 0, (outcome.reason, outcome.steps[-1])
    return outcome


def answers(outcome: AgentRun) -> list[Mapping[str, Any]]:
    return [step.envelope or {} for step in outcome.steps]


def text(env: Environment, command: str) -> str:
    return env.run(command, session=None).unwrap().output


def test_coder(repo: DockerEnvironment) -> None:
    outcome = ran(
        repo, "coder",
        run("python3 test_calc.py"),
        call("edit", path="calc.py", old_text="a - b", new_text="a + b"),
        run("python3 test_calc.py"),
        call("finish", summary="add adds"),
        task="mend add",
    )  # fmt: skip
    assert outcome.ok
    assert [answers(outcome)[n]["result"]["exit_code"] for n in (0, 2)] == [1, 0]


def test_commit_writer(repo: DockerEnvironment) -> None:
    text(repo, "sed -i s/libary/library/ README.md; git add README.md; echo '# more' >>calc.py")
    head = text(repo, "git rev-parse HEAD")
    outcome = ran(
        repo, "commit_writer",
        run("git status --short"),  # refreshes the index, which is no change
        run("git diff --staged"),
        run("git commit -qam 'by itself'"),
        call("finish", answer="Mend the spelling in the README"),
    )  # fmt: skip
    assert outcome.result == {"answer": "Mend the spelling in the README"}
    shown = answers(outcome)
    assert "library" in shown[1]["result"]["output"]
    assert "more" not in shown[1]["result"]["output"]
    assert shown[2]["code"] == "read_only"
    assert text(repo, "git rev-parse HEAD") == head
    assert text(repo, "git diff --staged --name-only") == "README.md\n"


def test_commit_writer_rejects_where_nothing_is_staged(repo: DockerEnvironment) -> None:
    outcome = ran(repo, "commit_writer", run("git diff --staged"), call("reject", reason="Nothing is staged."))
    assert (outcome.status, outcome.result) == (RunStatus.rejected, {"reason": "Nothing is staged."})


def test_math(box: DockerEnvironment) -> None:
    outcome = ran(
        box, "math",
        call("write", path="/tmp/sum.py", content="print(sum(range(1, 101)))\n"),
        run("python3 /tmp/sum.py"),
        call("finish", answer=5050),
        call("finish", answer="5050"),
        task="the sum of 1 to 100",
    )  # fmt: skip
    assert answers(outcome)[1]["result"]["output"] == "5050\n"
    assert answers(outcome)[2]["code"] == "invalid_arguments"  # outputs are checked
    assert outcome.result == {"answer": "5050"}


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("repo_explorer", {}, {"summary": "Adds numbers."}),
        ("study_repo_for_task", {"task": "mend add"}, {"summary": "calc.py:2 subtracts."}),
        ("verifier", {"task": "mend add"}, {"completed": False, "summary": "test_calc.py fails."}),
    ],
)
def test_those_that_look(repo: DockerEnvironment, name: str, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    before = text(repo, "git status --porcelain; git rev-parse HEAD; cat calc.py")
    outcome = ran(
        repo, name,
        call("list"),
        call("read", path="calc.py"),
        run("python3 test_calc.py"),
        run("sed -i s/-/+/ calc.py; touch new"),
        call("write", path="calc.py", content=""),
        call("finish", **outputs),
        **inputs,
    )  # fmt: skip
    shown = answers(outcome)
    assert outcome.result == outputs
    assert shown[2]["result"]["exit_code"] == 1
    assert (shown[3]["code"], shown[3]["effects"]) == ("read_only", "none")
    assert "~ calc.py" in shown[3]["error"]
    assert shown[4]["code"] == "unknown_tool"  # by the registry, not by the prompt
    assert text(repo, "git status --porcelain; git rev-parse HEAD; cat calc.py") == before
    assert repo.checkpoints().unwrap().checkpoints == ()


def test_typo_fixer(repo: DockerEnvironment) -> None:
    outcome = ran(
        repo, "typo_fixer",
        call("search", pattern="libary"),
        call("edit", path="README.md", old_text="libary", new_text="library"),
        call("finish", summary="README.md: libary"),
    )  # fmt: skip
    assert outcome.ok
    assert text(repo, "cat README.md") == "# A library for sums\n"


def test_manager_hands_on_and_hears_how_it_ended(repo: DockerEnvironment) -> None:
    seen: list[Any] = []

    def keep(prompt: Any) -> Any:
        seen.append(prompt)
        return call("finish", summary="mended and checked")

    outcome = ran(
        repo, "manager",
        call("delegate", agent="coder", inputs={"task": "mend add"}),
        call("edit", path="calc.py", old_text="a - b", new_text="a + b"),  # the coder's, with the same brain
        call("finish", summary="add adds"),
        call("delegate", agent="verifier", inputs={"task": "add adds"}),
        run("python3 test_calc.py"),
        call("finish", completed=True, summary="the test passes"),
        call("delegate", agent="math", inputs={"tsk": "x"}),
        call("delegate", agent="typo_fixer", inputs={}),
        call("reject", reason="nothing to mend"),
        keep,
        task="mend add",
    )  # fmt: skip
    assert outcome.ok
    assert [(a["tool_executed"], a.get("code")) for a in answers(outcome)] == [
        (True, None), (True, None), (False, "invalid_arguments"), (False, "delegate_not_finished"), (True, None),
    ]  # fmt: skip
    shown = str(seen[0])
    for said in ("add adds", "the test passes", "nothing to mend"):
        assert said in shown
    [tool] = [t for t in seen[0].tools if t["function"]["name"] == "delegate"]
    offered = tool["function"]["parameters"]["properties"]["agent"]["enum"]
    assert {"coder", "verifier", "math", "delegator"} <= set(offered)
    assert not {"manager", "dummy", "dummy_refuser", "postgres"} & set(offered)  # postgres: not in this image
    assert text(repo, "python3 test_calc.py && echo fine") == "fine\n"


class Developers:
    """A brain for all of a delegator's children, which decides by what its prompt says: the coder needs two rounds."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, prompt: Any) -> Any:
        said = str(prompt)
        last = prompt.messages[-1]["content"] if prompt.messages[-1]["role"] == "tool" else prompt.messages[-2]["content"]
        if "Do not carry the task out" in said:
            self.asked.append("study")
            return call("finish", summary="calc.py:2 subtracts") if "return a - b" in said else call("read", path="calc.py")
        if "Check whether this task was done" in said:
            return self._verify(str(last))
        self.asked.append("coder")
        if "# Sums" in said:
            written = "README.md, " in str(last)
            return call("finish", summary="README") if written else call("write", path="README.md", content="# Sums\n")
        if "calc.py:2 subtracts" not in said:
            return call("reject", reason="I was not told what the study found.")
        edited = "return a + b" in str(last)
        return call("finish", summary="calc.py") if edited else call("edit", path="calc.py", old_text="a - b", new_text="a + b")

    def _verify(self, last: str) -> Any:
        self.asked.append("verifier")
        if "exit code" not in last:
            return run("python3 test_calc.py && cat README.md")
        if "# Sums" in last:
            return call("finish", completed=True, summary="Both are done.")
        return call("finish", completed=False, summary="README.md must say # Sums")


def test_delegator_goes_round_until_it_is_done(repo: DockerEnvironment) -> None:
    brain = Developers()
    task = "mend add, and call it Sums"
    agent = build(hub.load("delegator"), Setting(environment=repo, hub=hub.default(), brain=brain, inputs={"task": task}))
    outcome = agent.execute(task)
    assert outcome.result == {"summary": "Both are done.", "rounds": 2}, outcome
    assert [step.args["agent"] for step in outcome.steps[:-1]] == [
        "study_repo_for_task", "coder", "verifier", "coder", "verifier",
    ]  # fmt: skip
    assert text(repo, "cat README.md calc.py") == "# Sums\ndef add(a, b):\n    return a + b\n"


def test_delegator_that_never_gets_done_is_rejected(repo: DockerEnvironment) -> None:
    def brain(prompt: Any) -> Any:
        if "Check whether this task was done" in str(prompt):
            return call("finish", completed=False, summary="still nothing")
        return call("finish", summary="said to be done")

    spec = hub.load("delegator")
    agent = build(spec, Setting(environment=repo, hub=hub.default(), brain=brain, inputs={"task": "x"}))
    outcome = agent.execute("x")
    assert outcome.status is RunStatus.rejected
    assert outcome.result == {"reason": "Not done after 3 rounds: still nothing"}
    assert outcome.iterations == 8


@pytest.fixture(scope="module")
def database() -> Iterator[DockerEnvironment]:
    with DockerEnvironment(image="gamebox/postgres", limits=Limits(memory_bytes=1 << 30, pids=256)) as env:
        yield env


UP = """ALTER TABLE people ADD COLUMN full_name text;
UPDATE people SET full_name = first || ' ' || last;
ALTER TABLE people ALTER COLUMN full_name SET NOT NULL, DROP COLUMN first, DROP COLUMN last;
"""
DOWN = """ALTER TABLE people ADD COLUMN first text, ADD COLUMN last text;
UPDATE people SET first = split_part(full_name, ' ', 1), last = split_part(full_name, ' ', 2);
ALTER TABLE people ALTER COLUMN first SET NOT NULL, ALTER COLUMN last SET NOT NULL, DROP COLUMN full_name;
"""
BEFORE = "CREATE TABLE people (id serial PRIMARY KEY, first text NOT NULL, last text NOT NULL);\n"


def psql(sql: str) -> dict[str, Any]:
    return run(f'psql -v ON_ERROR_STOP=1 -qAtc "{sql}"')


def applied(path: str) -> dict[str, Any]:
    return run(f"psql -q -v ON_ERROR_STOP=1 -1 -f {path}")


@pytest.mark.timeout(900)  # the image may have to be made
def test_postgres_writes_applies_and_undoes_a_migration(database: DockerEnvironment) -> None:
    database.write("migrations/0001_people.sql", BEFORE).unwrap()
    steps: Sequence[tuple[Any, int | None, str]] = [
        (call("list", path="migrations"), None, ""),
        (run("gamebox-postgres start"), 0, "answers"),
        (run("gamebox-postgres start"), 0, "already"),
        (applied("migrations/0001_people.sql"), 0, ""),
        (psql("INSERT INTO people (first, last) VALUES ('Ada', 'Lovelace'), ('Alan', 'Turing')"), 0, ""),
        (call("write", path="migrations/0002_full_name.sql", content=UP.replace("first ||", "frst ||")), None, ""),
        (applied("migrations/0002_full_name.sql"), 3, 'column "frst" does not exist'),
        (psql("SELECT count(*) FROM information_schema.columns WHERE table_name = 'people'"), 0, "3\n"),  # all or nothing
        (call("write", path="migrations/0002_full_name.sql", content=UP), None, ""),
        (call("write", path="migrations/0002_full_name.down.sql", content=DOWN), None, ""),
        (applied("migrations/0002_full_name.sql"), 0, ""),
        (psql("SELECT full_name FROM people ORDER BY id"), 0, "Ada Lovelace\nAlan Turing\n"),
        (applied("migrations/0002_full_name.down.sql"), 0, ""),
        (psql("SELECT first, last FROM people ORDER BY id"), 0, "Ada|Lovelace\nAlan|Turing\n"),
        (applied("migrations/0002_full_name.sql"), 0, ""),
        (run("gamebox-postgres reset && gamebox-postgres stop"), 0, ""),
        (call("finish", migration="migrations/0002_full_name.sql", summary="One name instead of two."), None, ""),
    ]
    outcome = ran(database, "postgres", *[step for step, _, _ in steps], task="one name instead of two")
    assert outcome.ok
    for (step, code, said), answer in zip(steps, answers(outcome), strict=True):
        assert answer["tool_executed"] is True, (step, answer)
        if code is not None:
            assert (answer["result"]["exit_code"], said in answer["result"]["output"]) == (code, True), (step, answer)
    assert not [c.command for c in database.processes().unwrap().commands if c.process_count]


def test_the_dummy_needs_neither_repository_nor_model(tmp_path: Path) -> None:
    done = run_gamebox("agent", "--agent", "dummy", "go", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["status"], told["diff"]) == ("finished", "")
    assert [step["tool"] for step in told["steps"]] == [step.tool for step in dummy.script()]  # all of it


def scripted(env: Environment, steps: Sequence[Expected], **fields: Any) -> AgentRun:
    spec = next(s for s in dummy.SPECS if s.name == "dummy")
    made = replace(spec, brain=lambda setting: ExpectingScript(steps))
    return build(made, Setting(environment=env, hub=hub.default(), **fields)).execute("go")


END = Expected("finish", {"summary": "done"})
ECHO = Expected("run", {"command": "echo one"}, {"result": {"output": "two\n"}})


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([ECHO, END], '+  "output": "one'),
        ([Expected("read", {"path": "missing"}), END], '+ "code": "path_not_found"'),
        ([END, Expected("think", {"thought": "x"})], "finished the run before its script: 1 steps left"),
        ([Expected("think", {"thought": "x"})], "the run goes on"),
        ([Expected("think", lambda answers: answers[-1]), END], "needs something that the earlier answers do not contain"),
    ],
)
def test_a_script_that_meets_something_else_does_not_finish(
    box: DockerEnvironment, steps: Sequence[Expected], said: str
) -> None:
    outcome = scripted(box, steps)
    assert outcome.status is RunStatus.unexpected
    assert said in outcome.reason, outcome.reason


def test_a_limit_ends_a_script_unfinished(box: DockerEnvironment) -> None:
    outcome = scripted(box, dummy.script(), budget=Budget(max_iterations=5))
    assert outcome.status is RunStatus.max_iterations
    text(box, f"rm -rf {dummy.FOLDER}")


def test_an_agent_of_a_file_runs_from_the_command_line(tmp_path: Path) -> None:
    """Ten lines are an agent."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/counter.md").write_text(
        "---\nname: counter\ndescription: Counts words.\ninputs: {task: string, least: integer}\n"
        "outputs: {words: integer}\nactions: [run, finish]\n---\nCount the words of {{ inputs.task }}.\n"
        "{% if inputs.least > 1 %}At least {{ inputs.least }}.{% endif %}\n"
    )
    script = tmp_path / "script.json"
    script.write_text(json.dumps([run("echo a b c | wc -w"), call("finish", words=3)]))
    done = run_gamebox(
        "agent", "a b c", "--agent", "counter", "--agents", "agents", "--input", "least=2", "--script", str(script), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "words: 3" in done.stderr


def test_a_hub_of_ones_own(box: DockerEnvironment) -> None:
    spec = hub.load("math")
    own = Hub([spec])
    brain = ScriptedModel([call("finish", answer="4")])
    agent = own.build("math", Setting(environment=box, hub=own, brain=brain, inputs={"task": "2+2"}))
    assert agent.execute("2+2").result == {"answer": "4"}
