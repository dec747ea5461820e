"""The action that hands a task to another agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent.actions import Action
from agent.delegation import MAX_DEPTH, Delegation, schema_of, words_of
from agent.errors import AgentErrorCode
from agent.hooks import Hooks
from agent.kits import Kit
from sandbox.envelope import Failure, Success

if TYPE_CHECKING:
    from agent.hub import AgentSpec, Setting

NAME = "delegate"


class _Delegate(Action):
    def show(self, envelope: Mapping[str, Any]) -> str:
        """The envelope; of an agent that did not finish, what it handed in stands there in words."""
        result = envelope.get("result")
        if envelope.get("code") == AgentErrorCode.delegate_not_finished.value and isinstance(result, Mapping):
            envelope = {**envelope, "result": words_of(result, str(envelope.get("error")))}
        return super().show(envelope)


class DelegateKit(Kit):
    """``delegate(agent, inputs)``. ``agents`` names those that can be chosen, all of the hub if it is None; see ``Delegation``.

    Where no agent can be delegated to there is no action, and the description says why. Raises ValueError for a depth below 1,
    SandboxError for an agent that is not there.
    """

    name = NAME

    def __init__(self, setting: Setting, agents: Sequence[str] | None = None, max_depth: int = MAX_DEPTH) -> None:
        if max_depth < 1:
            raise ValueError(f"max_depth must be at least 1, got {max_depth}.")
        self._delegation = Delegation(setting, None if agents is None else tuple(agents), max_depth)
        self._depth = setting.depth
        self._actions = (self._action(),) if self._delegation.agents else ()

    def actions(self) -> Sequence[Action]:
        """See the base class."""
        return self._actions

    def describe(self) -> Mapping[str, str]:
        """See the base class."""
        if self._actions:
            return {}
        if not self._delegation.is_allowed:
            return {"delegate": f"You cannot delegate: there are {self._depth} agents above you, the most there may be."}
        return {"delegate": "You cannot delegate: there is no agent that can work here."}

    def hooks(self) -> Sequence[Hooks]:
        """See the base class."""
        return (self._delegation.hooks(),)

    def cancel(self) -> None:
        """See the base class."""
        self._delegation.cancel()

    def _action(self) -> Action:
        agents = self._delegation.agents
        return _Delegate(
            NAME,
            self._delegate,
            "Hand a task to another agent. It works in this sandbox, on these files, and knows nothing but its inputs: say all it "
            "must know. You get its status, outputs and summary when it has ended.\n\nThe agents:\n"
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
    """One line: name, description, inputs, outputs."""
    outputs = ", ".join(spec.outputs.get("properties", {})) or "summary"
    return f"- {spec.name}: {' '.join(spec.description.split())} Inputs: {_inputs(spec)}. Outputs: {outputs}."


def _inputs(spec: AgentSpec) -> str:
    schema = schema_of(spec)
    required = schema.get("required", ())
    return ", ".join(
        f"{name} ({_kind(field)}{'' if name in required else ', may be left out'})"
        + (f": {str(field['description']).rstrip('.')}" if isinstance(field, Mapping) and field.get("description") else "")
        for name, field in schema.get("properties", {}).items()
    )


def _kind(field: Any) -> str:
    kind = field.get("type", "any") if isinstance(field, Mapping) else "any"
    return kind if isinstance(kind, str) else json.dumps(kind)
