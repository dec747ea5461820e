"""Conditions for the end of a ``gamebox agent`` run: commands that must pass, and another agent that must agree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.core.agent import Agent
from agent.core.kits import EquippedEnvironment, Kit
from agent.core.loop.layers import Layer
from agent.hub import AgentSpec, Hub, Setting
from agent.hub.catalogue import ends_runs
from agent.hub.schemas import schema_problem
from agent.layers.delegation import Delegation
from agent.layers.finish_checks import Check, CheckedFinish, Finding, command_passes
from sandbox.cli.errors import bad_input
from sandbox.environment.base import Environment
from sandbox.errors import SandboxError
from sandbox.frozen import dataclass

MOST_SCHEMA_BYTES = 1 << 20
# What a verifier's result says yes with.
VERDICTS = ("completed", "passed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The conditions; none by default. ``verifier`` is the name of an agent."""

    commands: tuple[str, ...] = ()
    verifier: str | None = None

    def lay(self, agent: Agent, setting: Setting, task: str) -> None:
        """Have ``agent``, built in ``setting`` for ``task``, end only where they hold; to be called before it is recorded."""
        checks: list[Check] = [command_passes(command) for command in self.commands]
        if self.verifier is not None:
            kit = _Verifying(Delegation(setting, (self.verifier,)), self.verifier, task)
            if isinstance(agent.environment, EquippedEnvironment):
                agent.environment.kits = (*agent.environment.kits, kit)
            checks.append(kit.check)
            agent.layers = (kit.layer(), *agent.layers)
        if checks:
            agent.layers = (CheckedFinish(checks, environment=agent.environment), *agent.layers)


class _Verifying(Kit):
    """A kit without actions: as a kit it is cancelled with the run."""

    name = "verifying"

    def __init__(self, delegation: Delegation, verifier: str, task: str) -> None:
        self._delegation, self._verifier, self._task = delegation, verifier, task

    def cancel(self) -> None:
        self._delegation.cancel()

    def layer(self) -> Layer:
        """Return the layer of the delegation, which ends its cancellation when a new run begins."""
        return self._delegation.layer()

    def check(self, environment: Environment, result: Mapping[str, Any]) -> Finding:  # noqa: ARG002 - it believes no words
        """Return the other agent's verdict. An agent that does not finish has not agreed."""
        answer = self._delegation.delegate(self._verifier, {"task": self._task})
        if not answer.ok:
            return Finding(False, f"the agent {self._verifier} reached no verdict: {answer.error}")
        outputs = answer.result["outputs"]
        passed = any(outputs.get(name) is True for name in VERDICTS)
        reason = outputs.get("summary") or outputs.get("reason") or "it does not say what is missing"
        return Finding(passed, "" if passed else f"the agent {self._verifier} says: {reason}")


def schema_in(path: Path) -> dict[str, Any]:
    """Read the JSON schema of an object from a file. Raises SandboxError ``invalid_configuration``."""
    hint = 'Give one such as {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}.'
    try:
        if path.stat().st_size > MOST_SCHEMA_BYTES:
            raise bad_input(f"The schema {path} is larger than {MOST_SCHEMA_BYTES >> 20} MiB.", "Name a smaller one.")
        schema = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise bad_input(f"The schema {path} cannot be read: {error}.", hint) from error
    if not isinstance(schema, dict) or schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        raise bad_input(f"The schema {path} does not describe an object with properties, which a result is.", hint)
    problem = schema_problem(schema)
    if problem is not None:
        raise bad_input(f"The schema {path} is invalid: {problem}", hint)
    return schema


def with_result(spec: AgentSpec, schema: Mapping[str, Any] | None) -> AgentSpec:
    """Return ``spec`` with results of that schema; its own schema stays. Raises SandboxError if it cannot give such a
    result.
    """
    if schema is None:
        return spec
    if "finish" not in spec.actions:
        raise bad_input(
            f"--result-schema has no effect with the agent {spec.name}: it ends without a result.",
            "Choose an agent with the action finish; see gamebox hub show NAME.",
        )
    if spec.outputs.get("properties"):
        raise bad_input(
            f"--result-schema has no effect with the agent {spec.name}: it has a result of its own "
            f"({', '.join(spec.outputs['properties'])}).",
            "Leave it out, or choose another agent.",
        )
    return replace(spec, outputs=dict(schema))


def check_ends(spec: AgentSpec, ending: Ending) -> None:
    """Raise SandboxError for an agent whose end cannot be refused."""
    if (ending.commands or ending.verifier) and any(ends_runs(name) for name in spec.actions):
        option = "--check" if ending.commands else "--verifier"
        raise bad_input(
            f"{option} has no effect with the agent {spec.name}: the output of a command ends its run, which nothing can refuse.",
            "Choose another agent, codeact for one.",
        )


def check_verifier(hub: Hub, name: str | None, spec: AgentSpec, image: str) -> None:
    """Raise SandboxError for an agent that cannot verify the work of ``spec`` in a sandbox of ``image``."""
    if name is None:
        return
    try:
        verifier = hub.load(name)
    except SandboxError as error:
        raise bad_input(f"--verifier: {error.message}", error.hint) from error
    wanted = [each for each in verifier.inputs.get("required", ()) if each != "task"]
    properties: Mapping[str, Any] = verifier.outputs.get("properties", {})
    if name == spec.name:
        raise bad_input(f"--verifier {name}: an agent cannot verify its own kind.", "Use --verifier verifier.")
    if verifier.needs_model and not spec.needs_model:
        raise bad_input(f"--verifier {name}: it asks a model, and the agent {spec.name} has none.", "Leave it out.")
    if wanted:
        raise bad_input(
            f"--verifier {name}: it needs more than a task ({', '.join(wanted)}).", "Use --verifier verifier."
        )
    if verifier.image not in (None, image):
        raise bad_input(
            f"--verifier {name}: it needs the image {verifier.image}, and the sandbox has the image {image}.",
            f"Use --image {verifier.image}.",
        )
    if not any(verdict in properties for verdict in VERDICTS):
        raise bad_input(
            f"--verifier {name}: its result has no {' and no '.join(VERDICTS)}, so it cannot say yes.",
            "Use --verifier verifier, or declare completed: boolean in its outputs.",
        )
