"""The environment of mini-swe-agent, with its own classes; its own tests and real runs are those of make foreign."""

from __future__ import annotations

import pytest
from minisweagent.environments import get_environment
from minisweagent.exceptions import Submitted

from sandbox import SandboxError
from sandbox.integrations.mini_swe_agent import GameboxEnvironment
from tests.contract.checks import with_more_time

pytestmark = pytest.mark.engine
NAME = "sandbox.integrations.mini_swe_agent.GameboxEnvironment"


def test_commands_of_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIVEN", "host")
    monkeypatch.setenv("OTHER", "host")
    env = get_environment(
        {"environment_class": NAME, "env": {"OTHER": "config"}, "forward_env": ["GIVEN", "OTHER", "MISSING"], "timeout": 20}
    )
    assert isinstance(env, GameboxEnvironment)
    with env:
        ran = env.execute({"command": "echo $GIVEN $OTHER; pwd; echo error >&2; exit 42"})
        assert ran == {"output": "host config\n/workspace\nerror\n", "returncode": 42, "exception_info": ""}
        assert env.execute({"command": "pwd"}, cwd="/tmp")["output"] == "/tmp\n"
        assert env.execute({"command": "kill -9 $$"})["returncode"] == 137
        late = with_more_time(
            lambda seconds: env.execute({"command": "echo begun; sleep 30"}, timeout=round(seconds)),
            lambda answer: bool(answer["output"]), 1,
        )  # fmt: skip
        assert (late["output"], late["returncode"], late["extra"]["exception_type"]) == ("begun\n", -1, "timeout")
        assert "killed" in late["exception_info"]
        assert env.execute({"command": "true"}, cwd="/none")["returncode"] == -1
        with pytest.raises(Submitted) as submitted:
            env.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo done"})
        assert submitted.value.messages[0]["extra"] == {"exit_status": "Submitted", "submission": "done\n"}
        assert env.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; false"})["returncode"] == 1
        known = env.get_template_vars(task="x")
        assert (known["system"], known["node"], known["task"]) == ("Linux", "sandbox", "x")
        assert env.serialize()["info"]["config"]["environment_type"] == NAME
    with pytest.raises(SandboxError):
        env.execute({"command": "true"})


def test_what_has_no_meaning_here_is_refused() -> None:
    for wrong in ({"run_args": ["--privileged"]}, {"executable": "podman"}, {"container_timeout": "soon"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            GameboxEnvironment(**wrong)
