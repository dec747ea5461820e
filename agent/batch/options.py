"""The options of ``gamebox batch``, and what trials are made of by them: sandboxes, brains, agents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from agent.budget import Budget
from agent.commands import brain_of
from agent.hub import AgentSpec, Hub, Setting, build, default
from agent.hub.building import check_inputs
from agent.hub.catalogue import language as language_of
from agent.loop import Agent
from agent.mcp_options import Servers, with_servers
from agent.model.brain import Brain
from agent.model.scripted import ScriptedModel
from agent.options import COMMAND_SECONDS, check_language, workspace_bytes
from agent.skills import teach
from agent.terminal_approvals import laid_over
from sandbox.cli.errors import bad_input
from sandbox.cli.sandbox_options import FLAGS, sandbox_of
from sandbox.docker.spec import DEFAULT_IMAGE
from sandbox.environment.base import Environment

from .oracle import oracle_agent
from .setup import TASK, digest_of_agent, digest_of_file, digest_of_task
from .tasks import BatchTask

ORACLE = "oracle"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command. ``env`` are variables that tasks in Harbor's form may ask for; nothing is recorded where ``log``,
    the event log, is None. ``sandbox`` are further options of all sandboxes that differ from their defaults.
    """

    tasks: Path
    out: Path
    agent: str
    model: str | None
    script: Path | None
    budget: Budget
    image: str | None
    memory: str
    cpus: float
    network: str
    workers: int = 1
    local: bool = False
    retry: bool = False
    redo_changed: bool = False
    as_json: bool = False
    language: str | None = None
    servers: Servers = field(default_factory=Servers)
    approve: str = "never"
    agents_md: bool = True
    history: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    pull: bool = False
    hub: Hub = field(default_factory=default)
    sandbox: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> AgentSpec | None:
        """The agent by name; None for the oracle. Raises SandboxError for one that is not there."""
        return None if self.agent == ORACLE else with_servers(self.hub.load(self.agent), self.servers)

    @property
    def thinks(self) -> bool:
        """Whether the agent needs a brain from outside."""
        return self.spec is not None and self.spec.needs_model

    def check(self, tasks: Sequence[BatchTask]) -> None:
        """Raises SandboxError for what is wrong before anything begins."""
        if self.workers < 1:
            raise bad_input(f"--workers is {self.workers}.", "Give 1 or more.")
        if self.network not in ("none", "task", "open"):
            raise bad_input(
                f"--network {self.network!r} is not known.", "Use none, task (what each task asks for) or open."
            )
        if self.approve not in ("never", "risky"):
            why = f"--approve {self.approve!r} has no effect in a batch: nobody can be asked."
            raise bad_input(why, "Use never, or risky, which refuses risky actions.")
        check_language(self.language)
        if self.spec is None:
            self._check_oracle()
        if self.thinks and not all(task.script for task in tasks):
            brain_of(self.model, self.script, self.budget)
        for task in tasks:
            if self.spec is not None:
                if self.spec.needs_repo and task.repo is None and (task.image or self.image) is None:
                    raise bad_input(
                        f"The agent {self.agent} needs a repository, and the task {task.id} names neither a repo nor an image.",
                        f'Give the task {task.id} a "repo" or an "image", or name an image for all with --image.',
                    )
                check_inputs(self.spec, self.inputs_for(self.spec, task))

    def _check_oracle(self) -> None:
        given: dict[str, Any] = {"--language": self.language, "--model": self.model, "--script": self.script}
        given["--mcp"] = self.servers.declared or None
        for option, value in given.items():
            if value is not None:
                raise bad_input(f"{option} has no effect with --agent oracle, which runs a script.", f"Leave {option} out.")

    @staticmethod
    def inputs_for(spec: AgentSpec, task: BatchTask) -> dict[str, Any]:
        """What the agent is given for a task; the task itself is its input of that name, where it has one."""
        own = {"task": task.task} if "task" in spec.inputs.get("properties", {}) else {}
        return {**own, **task.inputs}

    def identities(self, tasks: Sequence[BatchTask]) -> dict[str, dict[str, str]]:
        """What the result of each task is a result of, by its id. Raises SandboxError for files that cannot be read."""
        spec = None if self.agent == ORACLE else self.hub.load(self.agent)
        same = {
            "agent": self.agent,
            "definition_of_the_agent": "" if spec is None else digest_of_agent(spec),
            "model": self.model or "",
            "script": "" if self.script is None else digest_of_file(self.script),
            "language": self.language or ("" if spec is None else spec.language),
            "mcp": self.servers.told,
            "approve": self.approve,
            "agents_md": "yes" if self.agents_md else "no",
            "network": self.network,
            "history": "yes" if self.history else "",
            "sandbox": json.dumps(self.sandbox, default=str, sort_keys=True) if self.sandbox else "",
        }
        repos: dict[Path, str] = {}
        return {task.id: {**same, "image": self.image_of(task), TASK: digest_of_task(task, repos)} for task in tasks}

    def image_of(self, task: BatchTask) -> str:
        """The image of a task's sandbox: its own, else that of the options, else the agent's."""
        if self.local:
            return "none, on this host"
        return task.image or self.image or (self.spec and self.spec.image) or DEFAULT_IMAGE

    def workspace_bytes(self, task: BatchTask) -> int | None:
        """The room of the workspace of a task's sandbox; None on this host. Raises SandboxError for a size that is not one."""
        return None if self.local else workspace_bytes(task.memory or self.memory)

    def make_brain(self, task: BatchTask) -> Brain:
        """The brain of one task. Raises SandboxError."""
        if not self.thinks:
            return ScriptedModel([])
        if task.script is not None:
            return brain_of(None, task.script, self.budget)
        return brain_of(self.model, self.script, self.budget)

    def make_agent(self, task: BatchTask, environment: Environment, brain: Brain, budget: Budget) -> Agent:
        """The agent of one task, told what the task's repository says. Raises SandboxError."""
        spec = self.spec
        if spec is None:
            return oracle_agent(task, environment, budget)

        def made(agent: Agent, setting: Setting) -> None:
            if setting.depth:  # the first agent's own lies outside of its record
                laid_over(agent, self.approve, None)

        agent = build(
            spec,
            Setting(
                environment=environment, hub=self.hub, brain=brain, budget=budget, inputs=self.inputs_for(spec, task),
                language=None if self.language is None else language_of(self.language, {}), mcp_urls=self.servers.urls,
                on_built=made,
            ),
        )  # fmt: skip
        if self.agents_md and task.repo is not None and spec.needs_model:
            teach(agent)
        return agent

    def open_environment(self, task: BatchTask, folder: Path) -> Environment:
        """The sandbox of one task, around a copy of ``folder``. Raises SandboxError."""
        asked = task.network if self.network == "task" else self.network
        if self.local and task.verifier is not None:
            why = f"The task {task.id} cannot be run with --local: its verifier works as root at /tests."
            raise bad_input(why, "Leave --local out.")
        if self.local:  # it works in the folder it is given, and ours must stay as it is: the diff is made against it
            folder = Path(shutil.copytree(folder, Path(mkdtemp(dir=folder.parent), "local"), symlinks=True))
        options = {
            **self.sandbox, "image": self.image_of(task), "workspace": folder, "network": None if asked == "allow" else asked,
            "memory": task.memory or self.memory, "cpus": task.cpus or self.cpus, "pull": self.pull,
            "allow": [*self.sandbox.get("allow", ()), *(task.allow if asked == "allow" else ())],
        }  # fmt: skip
        if task.profile != FLAGS["profile"].default:
            options["profile"] = task.profile
        made = sandbox_of(options, local=self.local, timeout_seconds=COMMAND_SECONDS)
        for name, value in (*self.env.items(), *self.servers.secrets):
            made.hidden.hide(name, value)
        return made
