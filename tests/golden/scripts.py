"""What the brains of the scripted runs do, agent by agent: the same kinds of steps, in actions that the agent has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent.hub import AgentSpec

from .scene import HANGS, TEST, WRITES

FIRST, SUCCESS, FAILURE, REFUSAL, WORDS, LATE = (
    "first", "after_success", "after_failure", "after_refusal", "after_words_alone", "late",
)  # fmt: skip
POINTS = (FIRST, SUCCESS, FAILURE, REFUSAL, WORDS, LATE)
ALONE = "I do not know what to do next."
# So many steps between the fixed points at the beginning and the late one: more than the windows of codeact's kin hold, and
# within the steps of those that have few.
FILLING = 14


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply: ``tool`` with ``args`` after ``thought``, or the thought alone. ``point`` names the prompt that it answers."""

    thought: str
    tool: str | None = None
    args: Mapping[str, Any] | None = None
    point: str | None = None


Call = tuple[str, dict[str, Any]]
RAN: Call = ("run", {"command": TEST})
HUNG: Call = ("run", {"command": HANGS, "timeout_seconds": 5})
UNKNOWN: Call = ("deploy", {"to": "production"})
WROTE: Call = ("run", {"command": WRITES})
READ_LONG: Call = ("read", {"path": "long.txt"})
PLAN: Call = ("add_task", {"parent": "", "goal": "add adds", "subtasks": ["see the test fail", "fix calc.py"]})

# A success, a failure of the action itself, and what is refused before anything happens.
OPENINGS: dict[str, tuple[Call, Call, Call]] = {
    "codeact": (RAN, ("logs", {"id": "c9"}), UNKNOWN),
    "manager": (
        ("delegate", {"agent": "verifier", "inputs": {"task": "add adds"}}),
        ("delegate", {"agent": "coder", "inputs": {"task": "fix add in calc.py"}}),
        ("delegate", {"agent": "nobody", "inputs": {}}),
    ),
    "mini": (RAN, ("run", {"command": HANGS}), ("run", {})),
    "monologue": (("message", {"content": "The test fails because add subtracts."}), HUNG, UNKNOWN),
    "planner": (PLAN, ("modify_task", {"task_id": "0.7", "state": "completed"}), ("finish", {"summary": "too early"})),
    "swe_agent": (("open", {"path": "calc.py"}), ("open", {"path": "clac.py"}), ("goto", {"line": "top"})),
}  # fmt: skip
FILLERS: dict[str, list[Call]] = {
    "monologue": [("message", {"content": "What does the long text say at {n}?"}), *[READ_LONG] * 3],
    "swe_agent": [("goto", {"line": 5}), ("search_dir", {"pattern": "add"}), ("run", {"command": "make part{n}"})],
    "planner": [("modify_task", {"task_id": "0.0", "state": "in_progress"}), ("run", {"command": "make part{n}"})],
    "manager": [
        ("think", {"thought": "Part {n} is next."}),
        ("delegate", {"agent": "math", "inputs": {"task": "{n} + 1"}}),
    ],
}
# Of agents that bring their brains there are these, in the order of their steps: the delegator studies (which goes well), has it
# coded (which does not), and verified (which says that it is not done).
POINTS_OF_OWN = {"delegator": (FIRST, SUCCESS, FAILURE, LATE), "dummy": (FIRST, SUCCESS)}


def turns(spec: AgentSpec) -> Iterator[Turn]:
    """The replies of a run of ``spec``; the last one answers the late prompt."""
    usual = (RAN, HUNG, WROTE if spec.read_only else UNKNOWN)
    success, failure, refused = OPENINGS.get(spec.name, usual)
    yield Turn("First I look at how it fails.", *success, point=FIRST)
    yield Turn("Now something that goes wrong.", *failure, point=SUCCESS)
    yield Turn("And something that may not be.", *refused, point=FAILURE)
    yield Turn(ALONE, point=REFUSAL)
    fillers = FILLERS.get(spec.name, [("run", {"command": "make part{n}"})])
    for number in range(FILLING):
        tool, args = fillers[number % len(fillers)]
        yield Turn(f"Step {number}.", tool, filled(args, number), point=None if number else WORDS)
    yield Turn(ALONE, point=LATE)


def filled(value: Any, number: int) -> Any:
    """``value`` with the number of the step in its texts."""
    if isinstance(value, Mapping):
        return {key: filled(inner, number) for key, inner in value.items()}
    return value.replace("{n}", str(number)) if isinstance(value, str) else value


def of_child(spec: AgentSpec) -> Call:
    """What an agent that was delegated to does: the coder gives its task back, all others finish."""
    if spec.name == "coder":
        return "reject", {"reason": "calc.py is locked by somebody else."}
    given = {"string": f"{spec.name} is done", "boolean": False}
    properties = spec.outputs.get("properties") or {"summary": {"type": "string"}}
    return "finish", {name: given[schema["type"]] for name, schema in properties.items()}
