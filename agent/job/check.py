"""The self-check of an agent, ``gamebox check``: a checklist as code.

Nothing here calls the agent's brain or carries out its actions: probes are actions of our own.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from agent.core.actions import Action
from agent.core.agent import Agent
from agent.core.budget import Budget
from agent.core.goals import Goal, in_order
from agent.core.registry import ActionRegistry, lint
from agent.core.status import RunStatus
from agent.language import FunctionCallingLanguage
from agent.memory import ROLES, WindowMemory
from agent.model.scripted import ScriptedModel
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.frozen import dataclass

Verdict = Literal["pass", "warn", "fail"]
PROBE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding: the checked item, the verdict, and what to do unless it passed."""

    item: str
    verdict: Verdict
    found: str
    hint: str = ""


def check_agent(agent: Agent) -> list[Finding]:
    """Return the findings, in the order of the checklist."""
    items: tuple[Callable[[Agent], Finding], ...] = (
        _goals,
        _actions,
        _terminal,
        _arguments,
        _envelopes,
        _timeouts,
        _isolation,
        _memory,
        _prompt,
        _loop,
        _budget,
    )
    return [item(agent) for item in items]


def _goals(agent: Agent) -> Finding:
    names = [g.name for g in in_order(agent.goals)]
    if not names:
        return Finding("goals", "warn", "there are none", "Say what the agent is for: Goal(1, name, description).")
    double = {n for n in names if names.count(n) > 1}
    if double:
        return Finding("goals", "warn", f"several are called {', '.join(sorted(double))}", "Give each its own name.")
    return Finding("goals", "pass", f"{len(names)}: {', '.join(names)}")


def _actions(agent: Agent) -> Finding:
    problems = [f"{a.name}: {p}" for a in agent.actions.get_actions() for p in lint(a)]
    if not agent.actions.get_actions():
        return Finding("actions", "fail", "there are none", "Register actions.")
    if problems:
        return Finding("actions", "warn", "; ".join(problems), "Fix names, descriptions and schemas.")
    return Finding("actions", "pass", f"{len(agent.actions.get_actions())} with names, descriptions and schemas")


def _terminal(agent: Agent) -> Finding:
    names = [a.name for a in agent.actions.get_actions() if a.terminal]
    if names:
        return Finding("termination", "pass", f"ends with {', '.join(names)}")
    hint = "Mark one action terminal=True, or register agent.tools.finish_action()."
    return Finding("termination", "warn", "no action is terminal: runs end only at their limits", hint)


def _arguments(agent: Agent) -> Finding:
    for action in agent.actions.get_actions():
        ok, _ = agent.actions.validate_args(action, "no object")
        if ok:
            return Finding(
                "argument checks", "fail", f"{action.name} accepts text as arguments", "Check in validate_args."
            )
    return Finding("argument checks", "pass", "arguments are checked before an action is carried out")


def _fail() -> None:
    raise RuntimeError("probe")


def _envelopes(agent: Agent) -> Finding:
    hint = "execute_action answers {'tool_executed': ...} and raises nothing."
    try:
        good = agent.environment.execute_action(Action("probe", lambda: 1, "Probe."), {})
        bad = agent.environment.execute_action(Action("probe", _fail, "Probe."), {})
    except Exception as error:  # noqa: BLE001 - whatever the environment raises is the finding
        return Finding("envelopes", "fail", f"the environment raised {type(error).__name__}", hint)
    if good.get("tool_executed") is not True or bad.get("tool_executed") is not False or not bad.get("error"):
        return Finding("envelopes", "fail", f"a success came back as {good}, a failure as {bad}", hint)
    return Finding("envelopes", "pass", "success and failure come back as envelopes")


def _timeouts(agent: Agent) -> Finding:
    slow = Action("probe", lambda: time.sleep(PROBE_SECONDS * 5), "Probe.", metadata={"timeout_s": PROBE_SECONDS})
    hint = "Build on Environment, which keeps it."
    try:
        answer = agent.environment.execute_action(slow, {})
    except Exception as error:  # noqa: BLE001 - whatever the environment raises is the finding
        return Finding("timeouts", "fail", f"the environment raised {type(error).__name__}", hint)
    if answer.get("code") == ErrorCode.timeout:
        return Finding("timeouts", "pass", "metadata timeout_s is kept")
    return Finding("timeouts", "warn", "metadata timeout_s has no effect", hint)


def _isolation(agent: Agent) -> Finding:
    kind = type(agent.environment)
    on_host = [a.name for a in agent.actions.get_actions() if getattr(a, "operation", None) is None]
    if getattr(kind, "perform", Environment.perform) is Environment.perform:
        hint = "Use DockerEnvironment and sandbox_tools() for what touches files, commands or the network."
        return Finding("isolation", "warn", f"{kind.__name__} runs every action on the host", hint)
    return Finding("isolation", "pass", f"{kind.__name__}; on the host run only {', '.join(on_host) or 'none'}")


def _memory(agent: Agent) -> Finding:
    memory = agent.new_memory()
    memory.add_memory({"role": "user", "content": "task"})
    for number in range(1000):
        memory.add_memory({"role": ROLES[1 + number % 2], "content": str(number)})
    messages = memory.get_memories()
    if any(m.get("role") not in ROLES for m in messages):
        return Finding("memory", "fail", "it shows roles other than user, assistant and tool", "Keep to those.")
    if len(messages) > len(range(1000)):
        return Finding("memory", "warn", "it grows without bound", f"Use {WindowMemory.__name__}.")
    return Finding("memory", "pass", f"uniform roles; shows {len(messages)} of 1001 messages")


def _prompt(agent: Agent) -> Finding:
    memory = agent.new_memory()
    memory.add_memory({"role": "user", "content": "task"})
    actions = agent.actions.get_actions()
    prompts = [
        str(agent.construct_prompt(goals, memory, _Listed(listed)))
        for goals, listed in ((list(agent.goals), actions), (list(agent.goals)[::-1], actions[::-1]))
    ]
    if prompts[0] == prompts[1]:
        return Finding(
            "prompt", "pass", f"the same in any order of registration; {len(prompts[0])} characters at the start"
        )
    return Finding(
        "prompt", "warn", "it depends on the order of registration", "Sort goals and actions in the language."
    )


class _Listed(ActionRegistry):
    """A registry of given actions in a given order, without checks."""

    def __init__(self, actions: list[Action]) -> None:
        super().__init__()
        self.actions = {a.name: a for a in actions}


def _loop(agent: Agent) -> Finding:
    """Have the agent's own class run a script of mistakes, with our actions, in its environment."""
    registry = ActionRegistry([_probe("probe", _fail), _probe("probe_end", lambda: "done", terminal=True)])
    script = [
        "no action",
        {"tool": "nothing_here"},
        {"tool": "probe", "args": []},
        {"tool": "probe"},
        {"tool": "probe_end"},
    ]
    probed = copy.copy(agent)
    probed.goals, probed.agent_language, probed.actions = [Goal("probe")], FunctionCallingLanguage(), registry
    probed.generate_response, probed.hooks, probed.layers, probed.budget = ScriptedModel(script), [], (), Budget()
    run = probed.execute("probe")
    codes = [(s.envelope or {}).get("code") for s in run.steps]
    if run.status is RunStatus.finished and len(run.steps) == len(script):
        return Finding(
            "faults", "pass", f"unparsable, unknown, invalid and failed calls are reported and survived: {codes[:-1]}"
        )
    return Finding(
        "faults",
        "fail",
        f"the run ended as {run.status.value} after {len(run.steps)} steps: {run.reason}",
        "Keep Agent's loop.",
    )


def _probe(name: str, function: Callable[[], Any], *, terminal: bool = False) -> Action:
    return Action(name, function, "Probe.", {"type": "object", "properties": {}, "required": []}, terminal)


def _budget(agent: Agent) -> Finding:
    b = agent.budget
    limits = {"seconds": b.max_seconds, "tokens": b.max_tokens, "dollars": b.max_cost_usd}
    limited = [f"{v:g} {k}" for k, v in limits.items() if v is not None]
    if limited:
        return Finding("budget", "pass", f"{b.max_iterations} steps, {', '.join(limited)}")
    hint = "Give Agent(budget=Budget(max_cost_usd=..., max_seconds=...))."
    return Finding("budget", "warn", f"only the number of steps is limited ({b.max_iterations})", hint)


def load_agent(target: str) -> Agent:
    """Return the agent at ``module:attribute`` or ``file.py:attribute``; a function is called without arguments.

    Raises SandboxError ``invalid_configuration``.
    """
    hint = "Name it as module:attribute or path/to/file.py:attribute, an Agent or a function that makes one."
    where, _, attribute = target.rpartition(":")
    if not where or not attribute:
        raise SandboxError(ErrorCode.invalid_configuration, f"{target!r} does not name an agent.", hint)
    try:
        found: Any = getattr(_module(where), attribute)
        agent = found() if callable(found) and not isinstance(found, Agent) else found
    except SandboxError:
        raise
    except Exception as error:
        what = f"{target} cannot be loaded: {type(error).__name__}: {error}."
        raise SandboxError(ErrorCode.invalid_configuration, what, hint) from error
    if not isinstance(agent, Agent):
        raise SandboxError(
            ErrorCode.invalid_configuration, f"{target} is not an Agent but {type(agent).__name__}.", hint
        )
    return agent


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        sys.path.insert(0, "")  # as python -m does: modules of the present folder
        try:
            return importlib.import_module(where)
        finally:
            sys.path.remove("")
    path = Path(where)
    spec = importlib.util.spec_from_file_location(f"gamebox_checked_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise SandboxError(ErrorCode.invalid_configuration, f"There is no file {where}.", "Check the path.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
