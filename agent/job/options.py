"""The options of ``gamebox agent`` as a value that is recorded with a run, and the job that they make."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any

from agent.core.budget import Budget
from agent.errors import AgentErrorCode
from agent.hub import AgentSpec, Hub, default
from agent.hub.catalogue import LANGUAGES
from agent.hub.catalogue import language as language_of
from agent.hub.finding import DEFAULT_AGENT
from agent.hub.inputs import parse_inputs
from agent.model.brain import Brain
from agent.repo.git_folder import repository_around
from sandbox.cli.errors import bad_input
from sandbox.cli.network_options import services_of
from sandbox.cli.sandbox_options import FLAGS, Kept, checked_values, sandbox_of, size_of, variable_of
from sandbox.docker.spec import DEFAULT_CPUS, DEFAULT_IMAGE, DEFAULT_MEMORY
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass
from sandbox.limits import Limits
from sandbox.names import is_agent_name

from .ending import Ending, check_ends, check_verifier, schema_in, with_result
from .job import Job
from .mcp_servers import Servers, servers_of, with_servers
from .models import ModelChoice, brain_for
from .repository_image import check_devcontainer, follow_devcontainer, image_for

APPROVALS = ("never", "risky", "always")
# How long the sandbox of a run waits to be resumed or looked into, without --keep-seconds; then its guest ends it.
KEEP_SECONDS = 3600.0
# What is taken from any log: nothing in these reads the host, opens a network, changes a file of the user or brings code.
_LIMITS = {"max_iterations", "max_cost", "max_seconds", "max_tokens", "memory", "cpus"}
HARMLESS = frozenset(_LIMITS | {"image_why", "task", "agent", "language", "approve", "agents_md", "record_changes"})
_GRAVEST = ("repo", "allow", "network", "apply", "local")  # the gravest last
_MOST_LISTED = 8
# Options that an agent's sandbox cannot have: its folder is a copy of --repo, and its run finds it by the name run-ID.
NOT_OF_AGENTS = frozenset({"workspace", "name"})
_PATHS = ("repo", "script", "cache", "network_log", "result_schema", "mcp_config")
_LISTS = ("allow", "given", "mcp", "mcp_header", "check", "model_option", "fallback")

COMMAND_SECONDS = 600.0
"""What a command of an agent may take unless the agent says otherwise: builds and installations fit into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The options of one run. Paths are absolute; ``to_data`` returns them as texts, and everything else as it is.

    ``agents`` are folders with agents, ``given`` the agent's inputs as KEY=VALUE, ``model_option`` the
    model's options in the same form, ``fallback`` models to ask if it does not answer. None stands for the agent's own.
    ``check``, ``result_schema`` and ``verifier`` must hold before the run may end. With ``keep`` or ``keep_seconds``
    the sandbox of a recorded run stays, however the run ended. ``sandbox`` are further options of the sandbox (see
    ``sandbox_options.FLAGS``). ``devcontainer`` follows the repository's devcontainer.json. ``image_why`` says why ``image`` was
    chosen if nobody named it. With ``python`` the agents of ``agents`` may name Python files beside them; a log
    cannot set it. The values of headers (``mcp_header``) are not part of this, and those of variables are not in
    ``to_data``.
    """

    task: str
    repo: Path | None = None
    agent: str | None = None
    agents: tuple[Path, ...] = ()
    given: tuple[str, ...] = ()
    model: str | None = None
    model_option: tuple[str, ...] = ()
    fallback: tuple[str, ...] = ()
    script: Path | None = None
    image: str | None = None
    pull: bool = False
    apply: bool = False
    language: str | None = None
    max_iterations: int = 50
    max_cost: float | None = None
    max_seconds: float | None = None
    max_tokens: int | None = None
    memory: str = DEFAULT_MEMORY
    cpus: float = DEFAULT_CPUS
    local: bool = False
    network: str | None = None
    allow: tuple[str, ...] = ()
    cache: Path | None = None
    network_log: Path | None = None
    approve: str = "never"
    agents_md: bool = True
    mcp: tuple[str, ...] = ()
    mcp_header: tuple[str, ...] = ()
    mcp_config: Path | None = None
    check: tuple[str, ...] = ()
    result_schema: Path | None = None
    verifier: str | None = None
    record_changes: bool = False
    history: bool = False
    devcontainer: bool = False
    image_why: str = ""
    keep: bool = False
    keep_seconds: float | None = None
    sandbox: Mapping[str, Any] = field(default_factory=dict)
    python: bool = True

    @property
    def keeps(self) -> bool:
        """Whether the sandbox stays when the run has ended. ``--keep-seconds`` implies it."""
        return self.keep or self.keep_seconds is not None

    @property
    def kept_seconds(self) -> float:
        """How long the sandbox of a recorded run stays while nobody uses it."""
        return KEEP_SECONDS if self.keep_seconds is None else self.keep_seconds

    @classmethod
    def of_command(cls, values: Mapping[str, Any]) -> AgentOptions:
        """Return the options of a command line. Those that have no field here, and are not defaults, are in
        ``sandbox``.
        """
        own = {f.name for f in fields(cls)}
        sandbox = {
            name: value
            for name, value in values.items()
            if name not in own and value not in (None, (), FLAGS[name].default)
        }
        return cls(**{name: value for name, value in values.items() if name in own}, sandbox=sandbox)

    def to_data(self) -> dict[str, Any]:
        """Return JSON-ready data for ``of_data``."""
        paths_here = {name: getattr(self, name) for name in _PATHS}
        paths = {name: path and str(path.absolute()) for name, path in paths_here.items()}
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        own = {name: value for name, value in asdict(self).items() if name not in ("sandbox", "python")}
        return {
            **own,
            **paths,
            **lists,
            "agents": [str(folder.absolute()) for folder in self.agents],
            **self._sandbox_data(),
        }

    def _sandbox_data(self) -> dict[str, Any]:
        data = {}
        for name, value in self.sandbox.items():
            listed = list(value) if isinstance(value, tuple) else value
            data[name] = str(value.absolute()) if isinstance(value, Path) else listed
        if "env" in data:  # a value may be a secret
            data["env"] = [text.partition("=")[0] for text in data["env"]]
        return data

    @classmethod
    def of_data(cls, data: Mapping[str, Any], run: str, agent: str | None = None) -> AgentOptions:
        """Read the options recorded with ``run``. Raises SandboxError ``run_not_resumable`` if there are none.

        If they name no agent, the run keeps ``agent``, the one that it had: the default may be another one by now.
        """
        known = {f.name for f in fields(cls)}
        if "batch_task" in data:
            raise SandboxError(
                AgentErrorCode.run_not_resumable,
                f"The run {run} is the task {str(data['batch_task'])[:100]} of a batch, whose sandbox ended with it.",
                "Run the batch again with the same options: it runs the tasks without a result again.",
            )
        from pydantic import TypeAdapter  # a log may say anything: each value must be of its option's type

        try:
            values = {name: value for name, value in data.items() if name in known and name not in ("sandbox", "python")}
            values["sandbox"] = checked_values(
                {n: v for n, v in data.items() if n in FLAGS and n not in known | NOT_OF_AGENTS}
            )
            found: AgentOptions = TypeAdapter(cls).validate_python(
                {**values, "agents": values["agents"], "python": False}
            )
            found = replace(found, agent=found.agent or agent or None)
            if found.agent is not None and not is_agent_name(found.agent):
                raise ValueError(f"{found.agent!r:.80} cannot be the name of an agent")
            return found
        except (KeyError, ValueError) as error:
            raise SandboxError(
                AgentErrorCode.run_not_resumable,
                f"The run {run} was not made by gamebox agent, which therefore cannot build its agent.",
                "Resume it with agent.record.resume.resume(...) from the program that made it.",
            ) from error

    def unasked_for(self, changes: Mapping[str, Any]) -> list[str]:
        """Return the options that a log from elsewhere must not decide alone, as on a command line, without those in
        ``changes``.

        That is everything but the task, the agent's name and the limits: what reads the host, opens the network,
        writes back, runs on the host or brings code. The gravest come last, so that nothing pushes them off the
        screen. Of an option with many values, the first are listed with the number of the others.
        """
        defaults = AgentOptions(task="")
        data = self.to_data()
        names = [
            each.name
            for each in fields(self)
            if each.name not in HARMLESS and changes.get(each.name) is None
            if each.name not in ("sandbox", "python") and getattr(self, each.name) != getattr(defaults, each.name)
        ]
        names += [name for name in self.sandbox if changes.get(name) is None]
        names.sort(key=lambda name: _GRAVEST.index(name) if name in _GRAVEST else -1)
        return [words for name in names for words in _as_words(name, data[name])]

    def with_python(self) -> AgentOptions:
        """Return the same for a log that this user's Gamebox wrote: its folders of agents were named on a command
        line.
        """
        return replace(self, python=True)

    def changed(self, changes: Mapping[str, Any]) -> AgentOptions:
        """Return a copy with those of ``changes`` that are not None."""
        own = {f.name for f in fields(self)}
        values = {name: value for name, value in changes.items() if value is not None}
        sandbox = {name: value for name, value in values.items() if name not in own}
        return replace(
            self, **{name: value for name, value in values.items() if name in own}, sandbox={**self.sandbox, **sandbox}
        )

    def budget(self) -> Budget:
        """Return the budget. Raises SandboxError for a limit that is not positive."""
        return budget_of(self.max_iterations, self.max_seconds, self.max_tokens, self.max_cost)

    def job(self, name: str | None = None, *, attached: bool = False, replies: int = 0) -> Job:
        """Return the job. Raises SandboxError for invalid options.

        ``name`` is the name of a sandbox to keep, or with ``attached`` of an existing one. ``replies`` of a script
        have been used.
        """
        self._check()
        hub, spec = self.found()
        servers = servers_of(self.mcp, self.mcp_header, os.environ, self.mcp_config)
        spec = with_servers(
            with_result(spec, None if self.result_schema is None else schema_in(self.result_schema)), servers
        )
        ending = Ending(commands=self.check, verifier=self.verifier)
        check_ends(spec, ending)
        check_verifier(hub, self.verifier, spec, self.image or spec.image or DEFAULT_IMAGE)
        inputs = parse_inputs(spec, self.task, self.given)
        kept = Kept(inside=name) if attached else Kept(name is not None, name, None, self.kept_seconds)
        budget = self.budget()
        return Job(
            task=self.task,
            repo=self.repo,
            brain=self._brain(spec, budget, replies),
            budget=budget,
            open_environment=self.opener(kept, spec.image, servers),
            spec=spec,
            hub=hub,
            inputs=inputs,
            language=None if self.language is None else language_of(self.language, {}),
            apply=self.apply,
            agents_md=self.agents_md,
            approve=self.approve,
            mcp_urls=servers.urls,
            record_changes=self.record_changes,
            ending=ending,
            history=self.history,
            workspace_bytes=None if self.local else workspace_bytes(self.memory),
        )

    def with_repository(self, folder: Path) -> AgentOptions:
        """Return a copy with the git work tree around ``folder``, if the agent needs a repository and none is named.

        Raises SandboxError as ``found`` does.
        """
        hub = default(self.agents, python=self.python)
        name = self.agent or DEFAULT_AGENT
        if self.repo is not None or name not in hub.names() or not hub.load(name).needs_repo:
            return self
        return replace(self, repo=repository_around(folder))

    def with_image(self) -> AgentOptions:
        """Return a copy with an image that fits the repository, if neither the options nor the agent name one.

        Raises SandboxError as ``found`` does, and ``engine_*``.
        """
        if self.image is not None or self.devcontainer:
            return self
        choice = image_for(self.repo, self.found()[1], local=self.local, sandbox=self.sandbox)
        if choice is None:
            return self
        return replace(self, image=choice.image if choice.chosen else None, image_why=str(choice))

    def found(self) -> tuple[Hub, AgentSpec]:
        """Return all agents, and the one that is named. Raises SandboxError if it does not exist or lacks what it
        needs.
        """
        hub = default(self.agents, python=self.python)
        name = self.agent or DEFAULT_AGENT
        folders = {str(folder) for folder in self.agents}
        is_missing = name not in hub.names()
        unread = [p for p in hub.problems if name in p.where or (is_missing and p.where in folders)]
        if unread:  # another of that name is not the one that is meant
            more = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
            raise SandboxError(
                ErrorCode.invalid_configuration,
                f"The agent {name!r} cannot be read: {unread[0].where}: {unread[0].what}{more}",
                "Correct this; gamebox hub ls, with the same --agents, shows everything that cannot be read.",
            )
        spec = hub.load(name)
        if spec.needs_repo and self.repo is None:
            raise bad_input(
                f"The agent {spec.name} needs a repository, and none was named.",
                "Name its folder with --repo, or start in a git work tree other than your home folder.",
            )
        return hub, spec

    def _brain(self, spec: AgentSpec, budget: Budget, replies: int) -> Brain | None:
        chosen = ModelChoice(self.model, self.script, self.model_option, self.fallback)
        return brain_for(spec, chosen, budget, replies)

    def _check(self) -> None:
        if not self.task.strip():
            raise bad_input(
                "The task is empty.", 'Say what to do, as in: gamebox agent "make the failing test pass" ...'
            )
        check_language(self.language)
        if self.devcontainer:
            check_devcontainer(self.image, local=self.local, sandbox=self.sandbox, has_repo=self.repo is not None)
        for text in self.sandbox.get("env", ()):
            variable_of(text)
        services_of(self.sandbox.get("service", ()), self.sandbox.get("service_header", ()), os.environ)
        if self.approve not in APPROVALS:
            raise bad_input(f"--approve {self.approve!r} is not known.", f"Use {', '.join(APPROVALS)}.")
        if any(not command.strip() for command in self.check):
            raise bad_input("--check is empty.", "Give a command, as in --check 'python -m pytest -q'.")
        if self.apply and self.repo is None:
            raise bad_input(
                "--apply has no effect without --repo.",
                "Name the folder to write to with --repo, or leave --apply out.",
            )
        if self.keeps and self.local:
            raise bad_input("--local has no sandbox to keep.", "Leave out --keep and --keep-seconds, or --local.")
        if self.keep_seconds is not None:
            from sandbox.docker.kept import kept

            kept.check(self.keep_seconds, None)

    def opener(
        self, kept: Kept, image: str | None = None, servers: Servers | None = None
    ) -> Callable[[Path], Environment]:
        """Return what creates the sandbox for a folder, in ``image`` unless the options name another.

        Its network is what ``network`` and ``allow`` open, as for ``gamebox run``. Secrets of ``servers`` are masked
        in it.
        """

        def opened(folder: Path) -> Environment:
            if self.local:  # it works in the folder it is given, and the diff is made against ours
                folder = Path(shutil.copytree(folder, folder.with_name("local"), symlinks=True))
            own = {name: getattr(self, name) for name in FLAGS if name in {f.name for f in fields(self)}}
            options = {**own, **self.sandbox, "image": self.image or image or DEFAULT_IMAGE, "workspace": folder}
            build = None
            if self.devcontainer and kept.inside is None:
                options, build = follow_devcontainer(folder, options)
            made = sandbox_of(
                options, local=self.local, kept=kept, timeout_seconds=COMMAND_SECONDS, build_image=build
            )
            for name, value in () if servers is None else servers.secrets:
                made.hidden.hide(name, value)
            return made

        return opened


def _as_words(name: str, value: Any) -> list[str]:
    flag = "--input" if name == "given" else f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [f"{flag} (commands run on this host, without isolation)" if name == "local" else flag]
    values = value if isinstance(value, list) else [value]
    more = [f"{flag} ... ({len(values) - _MOST_LISTED:,} more)"] if len(values) > _MOST_LISTED else []
    return [*(f"{flag} {shlex.quote(str(each))}" for each in values[:_MOST_LISTED]), *more]


def workspace_bytes(memory: str) -> int:
    """Return the workspace size of a sandbox with this much memory, as in 2g. Raises SandboxError ``invalid_limits``."""
    return Limits(memory_bytes=size_of(memory)).workspace_bytes


def check_language(name: str | None) -> None:
    """Raise SandboxError for an unknown language. None stands for the agent's own."""
    if name is not None and name not in LANGUAGES:
        raise bad_input(f"--language {name!r} is not known.", f"Use one of: {', '.join(sorted(LANGUAGES))}.")


def budget_of(iterations: int, seconds: float | None, tokens: int | None, cost: float | None) -> Budget:
    """Return the budget. Raises SandboxError for a limit that is not positive."""
    try:
        return Budget(max_iterations=iterations, max_seconds=seconds, max_tokens=tokens, max_cost_usd=cost)
    except ValueError as error:
        raise bad_input(f"A limit is invalid: {error}", "Give a positive number, or leave the option out.") from error
