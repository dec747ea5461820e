"""A tree of three agents for tests of recorded delegation; each decides by what is in its memory, so that it can be made anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agent import Agent, Budget, Goal, Usage
from agent.core.budget import charge
from agent.hub import AgentSpec, Hub, Setting, build
from agent.record import events as ev
from agent.record.store import EventLog, RunRecord, record_of
from sandbox.environment.base import Environment

PRICE = 0.01


def call(tool: str, **args: Any) -> dict[str, Any]:
    """A reply that calls a tool."""
    return {"tool": tool, "args": args}


def delegate(agent: str, **inputs: Any) -> dict[str, Any]:
    """A reply that delegates."""
    return call("delegate", agent=agent, inputs=inputs)


def run(word: str, **args: Any) -> dict[str, Any]:
    """A reply whose command leaves a trace."""
    return call("run", command=f"echo {word} >> done", **args)


FINISH = call("finish", summary="done")
# boss ─ middle ─ worker; the session of the worker has a variable that only this session knows.
WORKER: list[Any] = [
    call("run", command="export WHO=worker; echo w1 >> done"),
    call("write", path="file", content="x"),
    call("run", command="echo $WHO >> done"),
    FINISH,
]
MIDDLE: list[Any] = [run("m1"), delegate("worker", task="work"), run("m2"), FINISH]
BOSS: list[Any] = [run("b1"), delegate("middle"), run("b2"), delegate("worker", task="again"), FINISH]
DONE = ["b1", "m1", "w1", "worker", "m2", "b2", "w1", "worker"]
CALLS = len(BOSS) + len(MIDDLE) + 2 * len(WORKER)
TASK = {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"], "additionalProperties": False}


def following(steps: Sequence[Any], asked: list[str] | None = None, name: str = "") -> Callable[[Setting], Any]:
    """A brain that gives the reply which is due by its memory; each call has its price."""

    def reply(prompt: Any) -> Any:
        number = sum(message["role"] == "assistant" for message in prompt.metadata["memory"])
        charge(Usage(calls=1, input_tokens=10, cost_usd=PRICE))
        if asked is not None:
            asked.append(f"{name}{number}")
        step = steps[number] if number < len(steps) else FINISH
        if isinstance(step, BaseException):
            raise step
        return step(prompt) if callable(step) else step

    return lambda setting: reply


def spec(name: str, steps: Sequence[Any], asked: list[str] | None = None, **fields: Any) -> AgentSpec:
    """An agent that follows these steps."""
    given = {"actions": ("delegate", "run", "write", "think", "finish", "reject"), "inputs": {}, "language": "structured", **fields}
    return AgentSpec(
        name=name, description=f"Is {name}.", goals=(Goal("Do it."),), brain=following(steps, asked, name), **given
    )


def tree(
    environment: Environment, *, boss: Sequence[Any] = BOSS, middle: Sequence[Any] = MIDDLE, worker: Sequence[Any] = WORKER,
    asked: list[str] | None = None, budget: Budget | None = None, worker_fields: Any = None, **setting: Any,
) -> Agent:  # fmt: skip
    """The first of the three."""
    first = spec("boss", boss, asked)
    others = spec("middle", middle, asked), spec("worker", worker, asked, inputs=TASK, **(worker_fields or {}))
    hub = Hub([first, *others])
    return build(first, Setting(environment=environment, hub=hub, budget=budget or Budget(), **setting))


class Moment(NamedTuple):
    """What an event of a run was: whose it is, its kind, and the tool if it is about an action."""

    agent: str
    kind: str
    tool: str | None


class Killed(BaseException):
    """Stands for SIGKILL: from here on nothing is written any more."""


class MortalLog(EventLog):
    """Dies at one of its events, of whichever run, before or after that is written; keeps what the events were."""

    dies_at, after, written, dead = 10**9, False, 0, False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.seen: list[Moment] = []
        self._agents: dict[str, str] = {}
        self._tools: dict[str, str | None] = {}

    def append(self, run: str, events: Sequence[ev.Event], parent: str | None = None) -> int:
        if self.dead:
            raise Killed
        self.dead = self.written + len(events) >= self.dies_at
        if self.dead and not self.after:
            raise Killed
        last = super().append(run, events, parent)
        self.written += len(events)
        self.seen += [self._moment(run, event) for event in events]
        if self.dead:
            raise Killed
        return last

    def _moment(self, run: str, event: ev.Event) -> Moment:
        if isinstance(event, ev.RunBegan):
            self._agents[run] = event.agent
        if isinstance(event, ev.ActionDecided):
            self._tools[run] = event.tool
        kind = type(event).__name__
        return Moment(self._agents.get(run, ""), kind, self._tools.get(run) if kind.startswith("A") else None)


def moments(seen: Sequence[Moment]) -> list[int]:
    """Return where to kill a run like the one whose events were seen: at the first event of each kind of each agent, and at the
    last of each kind with each tool. A kill at every event takes three times as long, and finds the same.
    """
    firsts: dict[tuple[str, str], int] = {}
    lasts: dict[tuple[str, str | None], int] = {}
    for number, (agent, kind, tool) in enumerate(seen, start=1):
        firsts.setdefault((agent, kind), number)
        lasts[kind, tool] = number
    return sorted({*firsts.values(), *lasts.values()} - {1})  # at the first nothing is there to resume


def tree_of(log: EventLog, run: str) -> list[RunRecord]:
    """The record of a run and those of all its parts, in the order of their beginnings."""
    record = record_of(log, run)
    return [record, *(each for child in record.children for each in tree_of(log, child))]


def done_in(environment: Environment) -> list[str]:
    """The traces that were left."""
    found = environment.read("done")
    return found.result.content.split() if found.ok else []


def shows(path: Path) -> str:
    """The text of a file; "" where there is none."""
    return path.read_text() if path.exists() else ""
