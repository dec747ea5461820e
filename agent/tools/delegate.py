"""The kit ``delegate``: hand a task to another agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.core.actions import Action
from agent.core.kits import Kit
from agent.core.loop.layers import Layer
from agent.errors import AgentErrorCode
from agent.layers.delegation import MAX_DEPTH, Delegation, schema_of, words_of
from sandbox.envelope import Failure, Success

if TYPE_CHECKING:
    from agent.hub import AgentSpec, Setting

NAME = "delegate"


class _Delegate(Action):
    def show(self, envelope: Mapping[str, Any]) -> str:
        """Return the envelope as text; the result of an agent that did not finish is put into words."""
        result = envelope.get("result")
        if envelope.get("code") == AgentErrorCode.delegate_not_finished.value and isinstance(result, Mapping):
            envelope = {**envelope, "result": words_of(result, str(envelope.get("error")))}
        return super().show(envelope)


class DelegateKit(Kit):
    """``delegate(agent, inputs)``. ``agents`` limits the choice; None allows all agents of the hub. See ``Delegation``.

    If there is no agent to delegate to, the kit has no action, and its description says why. Raises ValueError for a depth
    below 1, and SandboxError for an agent that does not exist.
    """

    name = NAME

    def __init__(self, setting: Setting, agents: Sequence[str] | None = None, max_depth: int = MAX_DEPTH) -> None:
        if max_depth < 1:
            raise ValueError(f"max_depth must be at least 1, got {max_depth}.")
        self._delegation = Delegation(setting, None if agents is None else tuple(agents), max_depth)
        self._depth = setting.depth
        self._actions = (self._action(),) if self._delegation.agents else ()

    def actions(self) -> Sequence[Action]:
        return self._actions

    def describe(self) -> Mapping[str, str]:
        if self._actions:
            return {}
        if not self._delegation.is_allowed:
            return {
                "delegate": f"You cannot delegate: there are already {self._depth} agents above you, which is the maximum."
            }
        return {"delegate": "You cannot delegate: there is no agent that can work here."}

    def hooks(self) -> Sequence[Layer]:
        return (self._delegation.layer(),)

    def cancel(self) -> None:
        self._delegation.cancel()

    def _action(self) -> Action:
        agents = self._delegation.agents
        return _Delegate(
            NAME,
            self._delegate,
            "Give a task to another agent. It works in this sandbox, on these files, and knows only its inputs: tell it everything "
            "it needs. You get its status, outputs and summary when it ends.\n\nThe agents:\n"
            + "\n".join(_line(spec) for spec in agents.values()),
            {
                "type": "object",
                "properties": {
                    "agent": {"type": "string", "enum": list(agents), "description": "Its name."},
                    "inputs": {"type": "object", "description": "Its inputs by name."},
                },
                "required": ["agent", "inputs"],
                "additionalProperties": False,
            },
            metadata={"takes_up": True},
        )

    def _delegate(self, agent: str, inputs: Mapping[str, Any]) -> Success[Any] | Failure[Any]:
        return self._delegation.delegate(agent, inputs)


def _line(spec: AgentSpec) -> str:
    """Return one line with name, description, inputs and outputs."""
    outputs = ", ".join(spec.outputs.get("properties", {})) or "summary"
    return f"- {spec.name}: {' '.join(spec.description.split())} Inputs: {_inputs(spec)}. Outputs: {outputs}."


def _inputs(spec: AgentSpec) -> str:
    schema = schema_of(spec)
    required = schema.get("required", ())
    return ", ".join(
        f"{name} ({_kind(field)}{'' if name in required else ', optional'})"
        + (
            f": {str(field['description']).rstrip('.')}"
            if isinstance(field, Mapping) and field.get("description")
            else ""
        )
        for name, field in schema.get("properties", {}).items()
    )


def _kind(field: Any) -> str:
    kind = field.get("type", "any") if isinstance(field, Mapping) else "any"
    return kind if isinstance(kind, str) else json.dumps(kind)
