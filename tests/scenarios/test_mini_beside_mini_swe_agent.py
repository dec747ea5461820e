"""The agent ``mini`` and mini-swe-agent on one script of replies: the same commands, answers and end, each in its own folder."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent import Budget, Prompt, RunStatus
from agent.hub import Setting, build, default
from sandbox import LocalEnvironment

TASK = "Make notes.txt."


def block(command: str) -> str:
    """A reply as mini-swe-agent asks for it; ours takes any word after the marks."""
    return f"So I think.\n\n```mswea_bash_command\n{command}\n```"


NO_BLOCK, TWO_BLOCKS = "First I think about it.", f"{block('echo one >> both')}\n{block('echo two >> both')}"
COMMANDS = (
    "echo hi; echo err >&2",
    "exit 3",
    "mkdir -p below && cd below && export KEPT=yes && echo first > ../notes.txt",
    'cat notes.txt; echo "[$KEPT]"; ls',  # neither the folder nor the variable stays
    "printf '%s' '<a> & \u2028 ü \"quoted\"'",
    "echo line one\necho line two >> notes.txt\ncat notes.txt; false",
    "kill -9 $$",
    "yes | head -c 30000",
    "cat > more.txt <<'END'\n$HOME `id`\nEND\ncat more.txt",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; exit 1",  # no submission: it failed
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat notes.txt; printf end",
)
REPLIES = (
    *map(block, COMMANDS[:2]),
    NO_BLOCK,
    *map(block, COMMANDS[2:6]),
    TWO_BLOCKS,
    *map(block, COMMANDS[6:]),
)  # fmt: skip


@dataclass(frozen=True)
class Told:
    """What came of the script: the commands with what each answered, in their order, the end, and the files that were made."""

    commands: tuple[str, ...]
    answers: tuple[tuple[int, str], ...]
    unread: tuple[int, ...]
    submission: str
    files: Mapping[str, str]


def files_in(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() if p.is_file() else "" for p in sorted(folder.rglob("*"))}


@pytest.fixture
def theirs(tmp_path: Path) -> Any:
    """Their agent once it has gone through the script, with its own reader of replies, its own environment and templates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MSWEA_SILENT_STARTUP", "1")
        patch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "settings"))
        # Else the import of their reader asks the network for prices.
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        package = Path(importlib.import_module("minisweagent").__file__ or "").parent
        agents = importlib.import_module("minisweagent.agents.default")
        models: Any = importlib.import_module("minisweagent.models.test_models")
        reader = importlib.import_module("minisweagent.models.utils.actions_text").parse_regex_actions
        regex = importlib.import_module("minisweagent.models.litellm_textbased_model").LitellmTextbasedModelConfig
        local = importlib.import_module("minisweagent.environments.local")
    config = yaml.safe_load((package / "config" / "mini_textbased.yaml").read_text())["model"]

    base: Any = models.DeterministicModel

    class Scripted(base):  # type: ignore[misc]
        """Theirs gives replies that are read already; here each is read as their models of texts read it."""

        def query(self, messages: list[dict[str, str]], **kwargs: Any) -> Any:
            output = super().query(messages, **kwargs)
            actions = reader(
                output["content"],
                action_regex=regex.model_fields["action_regex"].default,
                format_error_template=config["format_error_template"],
            )
            return {**output, "extra": {**output["extra"], "actions": actions}}

    outputs = [models.make_output(reply, []) for reply in REPLIES]
    model = Scripted(outputs=outputs, observation_template=config["observation_template"])
    (tmp_path / "theirs").mkdir()
    environment = local.LocalEnvironment(cwd=str(tmp_path / "theirs"))
    made = agents.DefaultAgent(
        model, environment, system_template="s", instance_template="{{task}}", cost_limit=0, step_limit=len(REPLIES)
    )
    made.run(TASK)
    return made


def told_of_theirs(made: Any, folder: Path) -> Told:
    extras = [message.get("extra", {}) for message in made.messages]
    unread = [extra["model_response"] for extra in extras if extra.get("interrupt_type") == "FormatError"]
    assert made.messages[-1]["extra"]["exit_status"] == "Submitted"
    return Told(
        commands=tuple(action["command"] for extra in extras for action in extra.get("actions", [])),
        answers=tuple((extra["returncode"], extra["raw_output"]) for extra in extras if "raw_output" in extra),
        unread=tuple(REPLIES.index(reply) for reply in unread),
        submission=made.messages[-1]["extra"]["submission"],
        files=files_in(folder),
    )


def code_of(result: Mapping[str, Any]) -> int:
    """The exit code as Python's subprocess says it: ours names the signal instead of one, where a signal ended the shell."""
    return int(result["exit_code"] if result["signal"] is None else -signal.Signals[result["signal"]])


def led(folder: Path) -> tuple[Told, list[Prompt], Any]:
    """Ours on the script: what came of it, every prompt, and the run."""
    replies: Iterator[str] = iter(REPLIES)
    prompts: list[Prompt] = []

    def brain(prompt: Prompt) -> str:
        prompts.append(prompt)
        return next(replies)

    agents = default()
    with LocalEnvironment(workspace=folder) as environment:
        setting = Setting(environment=environment, hub=agents, brain=brain, budget=Budget(max_iterations=len(REPLIES)))
        run = build(agents.load("mini"), setting).execute(TASK)
    assert run.status is RunStatus.finished, (run.reason, run.error)
    read = [step for step in run.steps if step.tool is not None]
    results = [(step.envelope or {})["result"] for step in read]
    told = Told(
        commands=tuple((step.args or {})["command"] for step in read),
        answers=tuple((code_of(result), result["output"]) for result in results[:-1]),
        unread=tuple(number for number, step in enumerate(run.steps) if step.tool is None),
        submission=str(run.result),
        files=files_in(folder),
    )
    return told, prompts, run


def test_mini_takes_the_same_steps_as_mini_swe_agent(theirs: Any, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    one = told_of_theirs(theirs, tmp_path / "theirs")
    other, prompts, run = led(tmp_path / "ours")
    assert len(run.steps) == theirs.n_calls == len(prompts) == len(REPLIES) == 13
    assert other.commands == one.commands == COMMANDS
    assert other.answers == one.answers
    assert [code for code, _ in one.answers] == [0, 3, 0, 0, 0, 1, -9, 0, 0, 1]
    assert other.unread == one.unread == (2, 7)
    assert other.submission == one.submission == "first\nline two\nend"
    assert other.files == one.files
    assert "both" not in one.files  # of two blocks none is carried out


def test_each_shows_its_model_every_answer_whole_but_a_long_one(theirs: Any, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    told, prompts, _ = led(tmp_path / "ours")
    kept = [str(message["content"]) for message in prompts[-1].messages if message["role"] in ("user", "assistant")]
    our = [content for content in kept if content.startswith("Result of run:")]
    their = [message["content"] for message in theirs.messages if "raw_output" in message.get("extra", {})]
    for (code, output), ours_of, theirs_of in zip(told.answers, our, their, strict=True):
        line_end = "" if not output or output.endswith("\n") else "\n"
        ended = f"[{'' if output else 'no output; '}{'killed by SIGKILL' if code < 0 else f'exit code {code}'}]"
        if len(output) < 10_000:
            assert f"{ours_of}\n".startswith(f"Result of run:\n{output}{line_end}{ended}\n")
        else:
            assert len(ours_of) < 12_000
            assert f"\n{ended}" in ours_of
        assert theirs_of.startswith(f"<returncode>{code}</returncode>\n")
        assert output in theirs_of or (len(output) == 30_000 and "20000 characters elided" in theirs_of)
    roles = [message["content"] for message in theirs.messages if message["role"] == "assistant"]
    for unread in (NO_BLOCK, TWO_BLOCKS):  # ours is told what was wrong beside what it said, theirs without
        assert unread in kept
        assert "unparsable_response" in kept[kept.index(unread) + 1]
        assert unread not in roles
