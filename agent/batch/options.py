"""The options of ``gamebox batch``, and the sandboxes, brains and agents that they make for trials."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from agent.core.agent import Agent
from agent.core.budget import Budget
from agent.core.loop.layers import Layer
from agent.hub import AgentSpec, Hub, Setting, build, default
from agent.hub.catalogue import language as language_of
from agent.hub.inputs import check_inputs
from agent.job.mcp_servers import Servers, with_servers
from agent.job.models import ModelChoice, brain_of, make_brain
from agent.job.options import COMMAND_SECONDS, check_language, workspace_bytes
from agent.job.repository_image import check_devcontainer, devcontainer_note, follow_devcontainer, image_for
from agent.job.skills import teach
from agent.model.brain import Brain
from agent.model.scripted import ScriptedModel
from agent.repo.devcontainer import read_devcontainer
from agent.repo.fitting_image import Choice
from agent.views.terminal_approvals import require_approvals
from sandbox.cli.errors import bad_input
from sandbox.cli.sandbox_options import FLAGS, check_options, sandbox_of
from sandbox.docker.spec import DEFAULT_IMAGE
from sandbox.environment.base import Environment
from sandbox.frozen import dataclass

from .oracle import oracle_agent
from .setup import TASK, digest_of_agent, digest_of_file, digest_of_task
from .tasks import BatchTask

ORACLE = "oracle"
_MOST_LINES = 10


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command.

    ``env`` are variables that tasks in Harbor's format may ask for. Nothing is recorded if ``log``, the event log, is
    None. ``sandbox`` are further options of all sandboxes that differ from their defaults. ``layers`` are the outermost
    layers of every agent, delegated ones included.
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
    devcontainer: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    pull: bool = False
    hub: Hub = field(default_factory=default)
    sandbox: Mapping[str, Any] = field(default_factory=dict)
    model_option: Sequence[str] = ()
    fallback: Sequence[str] = ()
    layers: tuple[Layer, ...] = ()
    _choices: dict[Path, Choice | None] = field(default_factory=dict, repr=False, compare=False)

    @property
    def spec(self) -> AgentSpec | None:
        """Return the agent by name; None for the oracle. Raises SandboxError for an unknown one."""
        return None if self.agent == ORACLE else with_servers(self.hub.load(self.agent), self.servers)

    @property
    def _chosen(self) -> ModelChoice:
        return ModelChoice(self.model, self.script, self.model_option, self.fallback)

    @property
    def thinks(self) -> bool:
        """Return whether the agent needs a brain from outside."""
        return self.spec is not None and self.spec.needs_model

    def check(self, tasks: Sequence[BatchTask]) -> None:
        """Raise SandboxError for invalid options, before anything begins."""
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
        check_options(self.sandbox, local=self.local)
        if self.devcontainer:
            check_devcontainer(self.image, local=self.local, sandbox=self.sandbox, has_repo=True)
            self._check_devcontainers(tasks)
        if self.spec is None:
            self._check_oracle()
        if self.thinks and not all(task.script for task in tasks):
            make_brain(self._chosen, self.budget)
        for task in tasks:
            if self.spec is not None:
                if self.spec.needs_repo and task.repo is None and (task.image or self.image) is None:
                    raise bad_input(
                        f"The agent {self.agent} needs a repository, and the task {task.id} names neither a repo nor an image.",
                        f'Give the task {task.id} a "repo" or an "image", or name an image for all with --image.',
                    )
                check_inputs(self.spec, self.inputs_for(self.spec, task))

    def _check_devcontainers(self, tasks: Sequence[BatchTask]) -> None:
        seen: set[Path] = set()
        for task in tasks:
            if task.repo is None or task.image is not None or task.repo in seen:
                continue
            seen.add(task.repo)
            if read_devcontainer(task.repo) is None:
                raise bad_input(
                    f"--devcontainer: the repository of the task {task.id} has no devcontainer.json.",
                    f'Leave the option out, or give the task {task.id} an "image".',
                )

    def _check_oracle(self) -> None:
        options: dict[str, Any] = {"--language": self.language, "--model": self.model, "--script": self.script}
        options |= {"--model-option": self.model_option or None, "--fallback": self.fallback or None}
        options["--mcp"] = self.servers.declared or None
        for option, value in options.items():
            if value is not None:
                raise bad_input(
                    f"{option} has no effect with --agent oracle, which runs a script.", f"Leave {option} out."
                )

    @staticmethod
    def inputs_for(spec: AgentSpec, task: BatchTask) -> dict[str, Any]:
        """Return the agent's inputs for a task. The task itself is the input ``task``, if the agent has that."""
        own = {"task": task.task} if "task" in spec.inputs.get("properties", {}) else {}
        return {**own, **task.inputs}

    def identities(self, tasks: Sequence[BatchTask]) -> dict[str, dict[str, str]]:
        """Return by id what the result of each task will be a result of. Raises SandboxError for files that cannot be
        read.
        """
        spec = None if self.agent == ORACLE else self.hub.load(self.agent)
        same = {
            "agent": self.agent,
            "definition_of_the_agent": "" if spec is None else digest_of_agent(spec),
            "model": " ".join([self.model or "", *self.fallback, *self.model_option]),
            "script": "" if self.script is None else digest_of_file(self.script),
            "language": self.language or ("" if spec is None else spec.language),
            "mcp": self.servers.description,
            "approve": self.approve,
            "agents_md": "yes" if self.agents_md else "no",
            "network": self.network,
            "history": "yes" if self.history else "",
            "devcontainer": "yes" if self.devcontainer else "",
            "sandbox": json.dumps(self.sandbox, default=str, sort_keys=True) if self.sandbox else "",
        }
        repos: dict[Path, str] = {}
        return {task.id: {**same, "image": self.image_of(task), TASK: digest_of_task(task, repos)} for task in tasks}

    def image_of(self, task: BatchTask) -> str:
        """Return the image of a task's sandbox: its own, else that of the options, else the agent's."""
        if self.local:
            return "none, on this host"
        named, own = task.image or self.image, (self.spec and self.spec.image) or DEFAULT_IMAGE
        if named or task.repo is None or self.devcontainer:  # its devcontainer.json counts among the files of the task
            return named or own
        if task.repo not in self._choices:
            self._choices[task.repo] = image_for(task.repo, self.spec, local=False, sandbox=self.sandbox)
        choice = self._choices[task.repo]
        return own if choice is None else choice.image

    def lines_about_images(self, tasks: Sequence[BatchTask]) -> list[str]:
        """Return what the user should know of images that were chosen for repositories, and of devcontainer.json files."""
        chosen = [str(choice) for choice in self._choices.values() if choice is not None]
        notes = [] if self.devcontainer or self.local else [devcontainer_note(task.repo, self.sandbox) for task in tasks]
        return list(dict.fromkeys(line for line in (*chosen, *notes) if line))[:_MOST_LINES]

    def workspace_bytes(self, task: BatchTask) -> int | None:
        """Return the size of the workspace of a task's sandbox; None on this host. Raises SandboxError for an invalid
        size.
        """
        return None if self.local else workspace_bytes(task.memory or self.memory)

    def make_brain(self, task: BatchTask) -> Brain:
        """Create the brain for one task. Raises SandboxError."""
        if not self.thinks:
            return ScriptedModel([])
        if task.script is not None:
            return brain_of(None, task.script, self.budget)
        return make_brain(self._chosen, self.budget)

    def make_agent(self, task: BatchTask, environment: Environment, brain: Brain, budget: Budget) -> Agent:
        """Create the agent for one task, with the instructions of the task's repository. Raises SandboxError."""
        spec = self.spec
        if spec is None:
            return oracle_agent(task, environment, budget)

        def made(agent: Agent, setting: Setting) -> None:
            agent.layers = (*self.layers, *agent.layers)
            if setting.depth:  # the first agent's own lies outside of its record
                require_approvals(agent, self.approve, None)

        agent = build(
            spec,
            Setting(
                environment=environment,
                hub=self.hub,
                brain=brain,
                budget=budget,
                inputs=self.inputs_for(spec, task),
                language=None if self.language is None else language_of(self.language, {}),
                mcp_urls=self.servers.urls,
                on_built=made,
            ),
        )
        if self.agents_md and task.repo is not None and spec.needs_model:
            teach(agent)
        return agent

    def open_environment(self, task: BatchTask, folder: Path) -> Environment:
        """Create the sandbox of one task with a copy of ``folder``. Raises SandboxError."""
        network = task.network if self.network == "task" else self.network
        if self.local and task.verifier is not None:
            why = f"The task {task.id} cannot be run with --local: its verifier works as root at /tests."
            raise bad_input(why, "Leave --local out.")
        if self.local:  # it works in the folder it is given, and ours must stay as it is: the diff is made against it
            folder = Path(shutil.copytree(folder, Path(mkdtemp(dir=folder.parent), "local"), symlinks=True))
        options = {
            **self.sandbox,
            "image": self.image_of(task),
            "workspace": folder,
            "network": None if network == "allow" else network,
            "memory": task.memory or self.memory,
            "cpus": task.cpus or self.cpus,
            "pull": self.pull,
            "allow": [*self.sandbox.get("allow", ()), *(task.allow if network == "allow" else ())],
        }
        if task.profile != FLAGS["profile"].default:
            options["profile"] = task.profile
        build = None
        if self.devcontainer and task.repo is not None and not (task.image or self.image):
            options, build = follow_devcontainer(folder, options)
        made = sandbox_of(options, local=self.local, timeout_seconds=COMMAND_SECONDS, build_image=build)
        for name, value in (*self.env.items(), *self.servers.secrets):
            made.hidden.hide(name, value)
        return made
