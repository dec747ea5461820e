"""Build an agent from its spec: look up the parts, and assemble them around the one loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent.core.actions import Action
from agent.core.agent import Agent
from agent.core.budget import Budget
from agent.core.kits import EquippedEnvironment, Kit
from agent.core.loop.hooks import Hooks
from agent.core.registry import ActionRegistry
from agent.layers.budget_line import BudgetLine
from agent.layers.stuck import StuckDetector, Thresholds
from agent.model.brain import Brain
from agent.tools import SandboxAction, finish_action, think_action
from agent.tools.sandbox_tools import HOST_ONLY
from sandbox.errors import configuration_error
from sandbox.operations import OPERATIONS

from . import catalogue, python_parts
from .hub import Setting
from .inputs import check_inputs
from .spec import AgentSpec
from .templates import filled


def build(spec: AgentSpec, setting: Setting) -> Agent:
    """Return the agent of ``spec`` in ``setting``; ``agent.environment`` is an ``EquippedEnvironment``.

    Raises SandboxError: ``invalid_arguments`` for inputs that do not match, ``invalid_configuration`` for a spec that names a
    part that does not exist, has no action that ends a run, or has no brain.
    """
    check_inputs(spec, setting.inputs)
    setting = replace(setting, spec=spec, ask_user=setting.ask_user if spec.asks_user else None)
    if spec.read_only:
        from agent.layers.read_only import guarded

        setting = replace(setting, environment=guarded(setting.environment))
    kits: list[Kit] = []
    try:
        made = _assemble(spec, setting, kits)
    except BaseException:
        for kit in kits:
            kit.close()  # servers that were started for it
        raise
    if setting.on_built is not None:
        setting.on_built(made, replace(setting, kits=tuple(kits)))
    return made


def _assemble(spec: AgentSpec, setting: Setting, kits: list[Kit]) -> Agent:
    """Return the agent. Its kits are added to ``kits`` as they are made, so that the caller can close them."""
    registry = _registry(spec, setting, kits)
    setting = replace(setting, kits=tuple(kits))
    brain = _brain(spec, setting)
    # Those that watch come before those that may end a run: what ends it is still seen by them.
    watching = [*(hook for kit in kits for hook in kit.hooks()), *_watching(brain), *_detector(spec, setting)]
    hooks = [*setting.hooks, *watching]
    language = setting.language or catalogue.language(spec.language, spec.language_options, spec)
    language = language.for_actions(registry.get_actions())
    return Agent(
        [_filled(goal, spec, setting.inputs) for goal in spec.goals],
        language,
        registry,
        brain,
        EquippedEnvironment(setting.environment, kits),
        hooks=hooks,
        # The first middleware stands next to the brain.
        layers=[BudgetLine(), *(catalogue.middleware(name, spec) for name in reversed(spec.middleware))],
        budget=_budget(spec, setting.budget),
        new_memory=setting.new_memory or catalogue.memory(spec.memory, spec.memory_options, setting.brain, spec),
    )


def _watching(brain: object) -> list[Hooks]:
    return [brain] if isinstance(brain, Hooks) else []


def _registry(spec: AgentSpec, setting: Setting, kits: list[Kit]) -> ActionRegistry:
    """Return the actions of the spec, and add its kits to ``kits``."""
    registry = ActionRegistry()
    for name in spec.actions:
        for action in _actions(name, spec, setting, kits):
            _register(registry, action, spec)
    if not any(action.terminal for action in registry.get_actions()) and not any(kit.ends_runs for kit in kits):
        raise configuration_error(
            f"The agent {spec.name!r} has no action that ends a run.",
            'Add "finish" to its actions.',
        )
    return registry


def _register(registry: ActionRegistry, action: Action, spec: AgentSpec) -> None:
    try:
        registry.register(action)
    except ValueError as error:
        raise configuration_error(
            f"The agent {spec.name!r} has two actions {action.name!r}.",
            "Remove one of them from its actions, or rename the MCP server that one comes from.",
        ) from error


def _filled(goal: Any, spec: AgentSpec, inputs: Mapping[str, Any]) -> Any:
    """Return ``goal`` with its template filled in."""
    return type(goal)(goal.priority, goal.name, filled(goal.description, inputs, spec))


def _actions(name: str, spec: AgentSpec, setting: Setting, kits: list[Kit]) -> list[Action]:
    if spec.read_only and name in catalogue.WRITING:
        raise configuration_error(
            f"The agent {spec.name!r} is read-only and names the action {name!r}, which writes.",
            "Remove one of the two.",
        )
    if python_parts.is_reference(name):
        return [python_parts.action(name, spec)]
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
    raise configuration_error(
        f"The agent {spec.name!r} names the action {name!r}, which does not exist.",
        f"Choose from: {', '.join(known)}.",
    )


def _brain(spec: AgentSpec, setting: Setting) -> Brain:
    brain = spec.brain(setting) if spec.brain is not None else setting.brain
    if brain is None:
        raise configuration_error(
            f"The agent {spec.name!r} needs a model, and none was named.",
            "Give it a brain: --model provider/name, or --script FILE.json.",
        )
    return brain


def _detector(spec: AgentSpec, setting: Setting) -> list[Hooks]:
    """Return the hook that ends a run that goes in circles. It comes last: all other hooks have seen the step by then."""
    if spec.stuck is None or not spec.needs_model:
        return []
    try:
        return [StuckDetector(Thresholds(**spec.stuck), lambda text: setting.environment.hidden.mask.text(text))]
    except (TypeError, ValueError) as error:
        raise configuration_error(
            f"The agent {spec.name!r} has invalid thresholds in stuck: {error}",
            "See stuck in docs/reference/agents/parts.md.",
        ) from error


def _budget(spec: AgentSpec, budget: Budget) -> Budget:
    if spec.max_iterations is None or spec.max_iterations >= budget.max_iterations:
        return budget
    return budget.with_iterations(spec.max_iterations)
