"""From a spec to an agent: the parts are looked up, and put together around the one loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent.actions import Action
from agent.budget import Budget
from agent.hooks import Hooks
from agent.kits import EquippedEnvironment, Kit
from agent.loop import Agent
from agent.model.brain import Brain
from agent.registry import ActionRegistry
from agent.remaining import RemainingEnvironment
from agent.stuck import StuckDetector, Thresholds
from agent.tools import SandboxAction, finish_action, think_action
from agent.tools.sandbox_tools import HOST_ONLY
from sandbox.errors import ErrorCode, SandboxError
from sandbox.operations import OPERATIONS

from . import catalogue
from .setting import Setting
from .spec import AgentSpec
from .templates import filled


class HubAgent(Agent):
    """The one loop; cancelling it cancels what its kits wait for, too: the agents it has delegated to, for one."""

    def cancel(self) -> None:
        """See the base class."""
        super().cancel()
        for kit in getattr(self.environment, "kits", ()):
            kit.cancel()


def build(spec: AgentSpec, setting: Setting) -> Agent:
    """Return the agent of ``spec`` in ``setting``; ``agent.environment`` is an ``EquippedEnvironment``.

    Raises SandboxError: ``invalid_arguments`` for inputs that do not match, ``invalid_configuration`` for a spec that names a
    part that does not exist, has no action that ends a run, or has no brain.
    """
    check_inputs(spec, setting.inputs)
    setting = replace(setting, spec=spec, ask_user=setting.ask_user if spec.asks_user else None)
    if spec.read_only:
        setting = read_only(setting)
    kits: list[Kit] = []
    try:
        made = _together(spec, setting, kits)
    except BaseException:
        for kit in kits:
            kit.close()  # servers that were started for it
        raise
    if setting.on_built is not None:
        setting.on_built(made, replace(setting, kits=tuple(kits)))
    return made


def _together(spec: AgentSpec, setting: Setting, kits: list[Kit]) -> Agent:
    """The agent; its kits are added to ``kits`` as they are made."""
    registry = _registry(spec, setting, kits)
    setting = replace(setting, kits=tuple(kits))
    brain = spec.brain(setting) if spec.brain is not None else setting.brain
    told = RemainingEnvironment(setting.environment)
    # Those that watch come before those that may end a run: what ends it is still seen by them.
    watching = [*(hook for kit in kits for hook in kit.hooks()), *_watching(brain), *_detector(spec, setting)]
    hooks = [told.counting, *setting.hooks, *watching]
    language = setting.language or catalogue.language(spec.language, spec.language_options)
    language = language.for_actions(registry.get_actions())
    return HubAgent(
        [_filled(goal, spec, setting.inputs) for goal in spec.goals],
        language,
        registry,
        _wrapped(brain, spec, replace(setting, language=language)),
        EquippedEnvironment(told, kits),
        hooks=hooks,
        budget=_budget(spec, setting.budget),
        new_memory=setting.new_memory or catalogue.memory(spec.memory, spec.memory_options, setting.brain),
    )


def _watching(brain: object) -> list[Hooks]:
    return [brain] if isinstance(brain, Hooks) else []


def read_only(setting: Setting) -> Setting:
    """The same with an environment in which nothing of the workspace can be changed."""
    from agent.read_only import ReadOnlyEnvironment

    environment = ReadOnlyEnvironment(setting.environment)
    return replace(setting, environment=environment, hooks=[*setting.hooks, environment.until_the_end])


def _registry(spec: AgentSpec, setting: Setting, kits: list[Kit]) -> ActionRegistry:
    """The actions of the spec; kits are added to ``kits``."""
    registry = ActionRegistry()
    for name in spec.actions:
        for action in _actions(name, spec, setting, kits):
            _register(registry, action, spec)
    if not any(action.terminal for action in registry.get_actions()) and not any(kit.ends_runs for kit in kits):
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The agent {spec.name!r} has no action that ends a run.",
            'Add "finish" to its actions.',
        )
    return registry


def _register(registry: ActionRegistry, action: Action, spec: AgentSpec) -> None:
    try:
        registry.register(action)
    except ValueError as error:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The agent {spec.name!r} has two actions {action.name!r}.",
            "Take one of the two out of its actions, or give the MCP server of one another name.",
        ) from error


def check_inputs(spec: AgentSpec, inputs: Mapping[str, Any]) -> None:
    """Raises SandboxError ``invalid_arguments`` for inputs that do not fit the schema of ``spec``."""
    probe = Action(spec.name, lambda: None, spec.description, spec.inputs)
    fits, message = ActionRegistry().validate_args(probe, inputs)
    if not fits:
        wanted = ", ".join(spec.inputs.get("properties", {})) or "none"
        raise SandboxError(
            ErrorCode.invalid_arguments,
            f"The inputs of the agent {spec.name!r} do not fit: {message}",
            f"Its inputs are: {wanted}.",
        )


def _filled(goal: Any, spec: AgentSpec, inputs: Mapping[str, Any]) -> Any:
    """``goal`` with its template filled."""
    return type(goal)(goal.priority, goal.name, filled(goal.description, inputs, spec))


def _actions(name: str, spec: AgentSpec, setting: Setting, kits: list[Kit]) -> list[Action]:
    if spec.read_only and name in catalogue.WRITING:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The agent {spec.name!r} is read-only and names the action {name!r}.",
            "Take one of the two out.",
        )
    if name in catalogue.KITS:
        kits.append(catalogue.kit(name, setting, spec.kit_options.get(name, {})))
        return list(kits[-1].actions())
    if name == "finish":
        return [finish_action(spec.outputs)]
    if name == "think":
        return [think_action()]
    if name in OPERATIONS and name not in HOST_ONLY:
        return [SandboxAction(name)]
    known = sorted({*catalogue.KITS, *OPERATIONS, "finish", "think"} - HOST_ONLY)
    raise SandboxError(
        ErrorCode.invalid_configuration,
        f"The agent {spec.name!r} names an action {name!r}, which is not there.",
        f"Use some of: {', '.join(known)}.",
    )


def _wrapped(brain: Brain | None, spec: AgentSpec, setting: Setting) -> Brain:
    if brain is None:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The agent {spec.name!r} needs a model, and none was named.",
            "Give it a brain: --model provider/name, or --script FILE.json.",
        )
    for name in spec.middleware:
        brain = catalogue.middleware(name, brain, setting)
    return brain


def _detector(spec: AgentSpec, setting: Setting) -> list[Hooks]:
    """What ends a run that goes in circles; the last of the hooks, so that all others have seen the step by then."""
    if spec.stuck is None or not spec.needs_model:
        return []
    try:
        return [StuckDetector(Thresholds(**spec.stuck), lambda text: setting.environment.hidden.mask.text(text))]
    except (TypeError, ValueError) as error:
        raise SandboxError(
            ErrorCode.invalid_configuration,
            f"The agent {spec.name!r} has thresholds that are none: {error}",
            "Look at stuck in docs/reference/agents/parts.md.",
        ) from error


def _budget(spec: AgentSpec, budget: Budget) -> Budget:
    if spec.max_iterations is None or spec.max_iterations >= budget.max_iterations:
        return budget
    return budget.with_iterations(spec.max_iterations)
