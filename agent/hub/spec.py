"""What an agent is made of, as a value: from Python, or from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from agent.core.goals import Goal
from agent.model.brain import Brain
from sandbox.frozen import dataclass

EMPTY: Mapping[str, Any] = {"type": "object", "properties": {}, "required": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """One kind of agent.

    ``goals`` are templates (see ``templates``) that the inputs fill. ``actions`` are names of the catalogue: operations of
    the sandbox, single tools, and kits; nothing else can be carried out. ``language`` and ``memory`` are names of the
    catalogue, with options. All three may also be ``module:name``: a Python file in ``python_folder`` and what it defines.
    Without that folder nothing is imported. ``inputs`` and ``outputs`` are JSON schemas; if there are outputs, they are the
    arguments of ``finish``. ``brain`` makes the brain of an agent that needs no model, from the setting; ``middleware`` are
    layers of the catalogue around the brain, the innermost first. A brain that is also a ``Hooks`` watches the runs it
    decides. ``max_iterations`` bounds a run unless its caller's budget allows less. ``stuck`` are thresholds of
    ``agent.layers.stuck`` that differ from the defaults; None switches the detection off. A spec's own brain is never
    watched.

    ``image`` is the image of the sandbox that it needs. ``needs_repo``: it works on a repository. ``read_only``: its commands
    may change nothing in the workspace (see ``read_only.ReadOnlyEnvironment``). ``delegable``: other agents may delegate to it.
    ``listed``: lists for users show it. ``asks_user``: if false, its questions are answered as if no user were there.
    ``children_need_model``: it has a brain of its own, but the agents it delegates to need a model. ``source`` says where the
    spec comes from.
    """

    name: str
    description: str
    goals: tuple[Goal, ...] = ()
    actions: tuple[str, ...] = ()
    language: str = "function_calling"
    language_options: Mapping[str, Any] = field(default_factory=dict)
    memory: str = "window"
    memory_options: Mapping[str, Any] = field(default_factory=dict)
    kit_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    outputs: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    brain: Callable[[Any], Brain] | None = None  # called with the Setting, which knows specs
    middleware: tuple[str, ...] = ()
    max_iterations: int | None = None
    stuck: Mapping[str, Any] | None = field(default_factory=dict)
    image: str | None = None
    needs_repo: bool = False
    read_only: bool = False
    delegable: bool = True
    listed: bool = True
    asks_user: bool = True
    children_need_model: bool = False
    source: str = "python"
    python_folder: Path | None = None

    @property
    def needs_model(self) -> bool:
        """Whether it, or an agent that it delegates to, needs a model."""
        return self.brain is None or self.children_need_model
