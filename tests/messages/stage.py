"""Where situations happen, and what the model is shown there: the next prompt of a real agent with a scripted brain."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from agent import Agent, AgentRun, Budget
from agent.core.prompt import Prompt
from agent.core.status import StopRun
from agent.hub import AgentSpec, Hub, Setting, build, catalogue
from agent.hub.finding import built_in
from agent.record import events as ev
from agent.record.resume import begin, resume
from agent.record.store import EventLog, RunWriter
from sandbox import DockerEnvironment, Ready, Service, SideService
from sandbox.docker.engine.client import connect
from sandbox.environment.base import Environment
from sandbox.limits import Limits
from sandbox.network.policy import Network
from tests.integration.made_images import import_image, remove_image

from .situation import Call, Situation

MIB = 1 << 20
SMALL = Limits(
    memory_bytes=256 * MIB, disk="memory", pids=64, open_files=300, file_bytes=8 * MIB, write_bytes=1 * MIB,
    cpu_seconds_per_command=1.0, background_commands=3, sessions=3, timeout_seconds=20.0, max_timeout_seconds=60.0,
)  # fmt: skip
FOLDERS = ("bin", "etc", "home", "proc", "sys", "tmp", "usr", "var", "workspace")
# A database that ends by itself, once there is the file /tmp/end.
ENDING = (
    "echo ready for connections; until [ -e /tmp/end ]; do sleep 0.1; done; "
    "echo 'FATAL: the folder of the data has the wrong owner'; exit 1"
)


def _side_service() -> Environment:
    limits = Limits(memory_bytes=256 * MIB, pids=64)
    db = SideService(image="gamebox/base", limits=limits, ports=(5432,), command=ENDING, ready=Ready(log="ready"))
    return DockerEnvironment(services={"db": db})


@contextmanager
def _without_a_shell() -> Iterator[Environment]:
    image = import_image(connect(), {}, folders=FOLDERS)
    try:
        with DockerEnvironment(image) as environment:
            yield environment
    finally:
        remove_image(connect(), image)


@contextmanager
def _kept() -> Iterator[Environment]:
    with DockerEnvironment(keep=True, keep_seconds=60.0) as environment:
        try:
            yield environment
        finally:
            environment.remove()


PLACES: Mapping[str, Callable[[], AbstractContextManager[Environment]]] = {
    "sandbox": DockerEnvironment,
    "slow": DockerEnvironment,  # one of its own, whose guest a situation slows down
    "small": lambda: DockerEnvironment(limits=SMALL),
    "twice": lambda: DockerEnvironment(limits=replace(SMALL, pids=2 * SMALL.pids)),
    "allowing": lambda: DockerEnvironment(network=Network.allow("pypi.example.com")),
    "ending": lambda: DockerEnvironment(limits=Limits(lifetime_seconds=25.0)),
    "served": lambda: DockerEnvironment(services=[Service("prices", "http://127.0.0.1:9", methods=("GET",), paths=("/v1/*",))]),
    "no_shell": _without_a_shell,
    "beside": _side_service,
    "idle": lambda: DockerEnvironment(limits=Limits(idle_seconds=15.0)),
    "kept": _kept,
    "silent": lambda: DockerEnvironment(limits=Limits(network_silent_seconds=1.0)),
    "crowded": lambda: DockerEnvironment(limits=Limits(memory_bytes=256 * MIB, pids=64, background_commands=20)),
    "watched": lambda: DockerEnvironment(profile="root", limits=Limits(memory_bytes=256 * MIB, disk_bytes=100 * MIB)),
    "none": Environment,
}


@dataclass(frozen=True, slots=True)
class Shown:
    """What a reader is given: the tools, the last action, and the text that answered it."""

    tools: str
    action: str
    text: str
    names: Mapping[str, frozenset[str]]


class Stage:
    """The environments, each made when it is first needed; a context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._places: dict[str, Environment] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def place(self, name: str) -> Environment:
        """The environment of that name, with nothing left in it of the situations before."""
        if name not in self._places:
            made = self._places[name] = self._stack.enter_context(PLACES[name]())
            made.run("sleep 300", session=None, wait_seconds=0.1)  # the guest loads what finds out what a command waits for
        return self._places[name]

    def play(self, situation: Situation) -> Shown:
        """Let it happen; the answer as the model is shown it. Raises AssertionError where the run did not get so far."""
        environment = self.place(situation.place)
        if situation.place != "none":
            _tidied(environment)
        fields = dict((situation.setup(environment) if situation.setup else None) or {})
        hub = Hub(spec for spec in built_in() if isinstance(spec, AgentSpec))
        spec = hub.load(situation.agent)
        brain = _Scripted([*situation.before, situation.call, *situation.below], len(situation.before), fields)
        around = situation.around(environment) if situation.around else environment
        language = situation.language or spec.language
        setting = Setting(
            environment=around, hub=hub, brain=brain, budget=Budget(max_iterations=50),
            inputs={"task": situation.task} if "task" in spec.inputs.get("properties", {}) else {},
            language=catalogue.language(language, spec.language_options if language == spec.language else {}),
        )  # fmt: skip
        made = build(spec, setting)
        for tool in situation.tools:
            made.actions.register(tool)
        try:
            run = _resumed(made, situation) if situation.cut_off else made.execute(situation.task)
        finally:
            for kit in getattr(made.environment, "kits", ()):
                kit.close()
        assert brain.last is not None, (situation.name, run.status, run.reason, run.error)
        actions = sorted(made.actions.get_actions(), key=lambda action: action.name)
        tools = "\n".join(_signature(action.spec()) for action in actions)
        names = {a.name: frozenset(a.parameters.get("properties", {})) for a in actions}
        action, text = normalised(brain.said, brain.last)
        return Shown(tools, action.rstrip("\n"), text, names)


class _KilledError(BaseException):
    """Stands for SIGKILL."""


class _Mortal(RunWriter):
    """Dies before the answer of an action is written."""

    def append(self, *events: ev.Event) -> int:
        if any(isinstance(event, ev.ActionExecuted) for event in events):
            raise _KilledError
        return super().append(*events)


def _resumed(made: Agent, situation: Situation) -> AgentRun:
    """Cut the run off in its last action, and take it up again from its log."""
    with tempfile.TemporaryDirectory() as folder, EventLog(Path(folder) / "runs.db") as log:
        with _Mortal(log, "cut") as writer:
            recorder = begin(made, writer, situation.task)
            with suppress(_KilledError):
                made.execute(situation.task)
            recorder.detach()
        with log.begin("cut") as writer:
            return resume(made, writer)


class _Scripted:
    """Gives its replies one after the other; the prompt after the last one is the one that counts."""

    def __init__(self, replies: list[Call | str], at: int, fields: Mapping[str, Any]) -> None:
        self._replies = [_filled(reply, fields) for reply in replies]
        self._next, self._at = 0, at
        self.last: str | None = None
        self.said = ""

    def __call__(self, prompt: Prompt, /) -> Any:
        if self._next == len(self._replies):
            answers = [m for m in prompt.messages if m["role"] == "tool" or str(m["content"]).startswith("Result")]
            later = prompt.messages[-1 if not str(prompt.messages[-1]["content"]).startswith("# Environment now") else -2]
            self.last = str((answers or [later])[-1]["content"])
            raise StopRun("The situation is there.")
        reply = self._replies[self._next]
        self._next += 1
        if self._next - 1 == self._at:
            self.said = reply if isinstance(reply, str) else _call_text(*reply)
        if isinstance(reply, str):
            return reply
        tool, args = reply
        function = {"name": tool, "arguments": json.dumps(args)}
        call = {"id": f"call_{self._next}", "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}


def _filled(value: Any, fields: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, fields) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_filled(inner, fields) for inner in value)
    if isinstance(value, str):
        for name, each in fields.items():
            value = value.replace("{" + name + "}", str(each))
    return value


def _call_text(tool: str, args: Mapping[str, Any]) -> str:
    parts = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in args.items()]
    text = f"{tool}({', '.join(parts)})"
    return text if len(text) <= 400 else f"{text[:80]}[... {len(text) - 120:,} characters ...]{text[-40:]}"


def _signature(spec: Mapping[str, Any]) -> str:
    parameters = spec["parameters"]
    needed = parameters.get("required", [])
    names = [*needed, *(f"{name}?" for name in parameters.get("properties", {}) if name not in needed)]
    return f"{spec['name']}({', '.join(names)})"


def _had(match: re.Match[str]) -> str:
    """How much memory a process had is not always known."""
    return f"; {match[1]} had 240.0 MiB of it" if match[1] else f"{match[2]} had 240.0 MiB of it"


# The next command's id, ports and processes are what they happen to be.
_VOLATILE = (
    (re.compile(r"(?<=line )\d+(?=: +\d+ )"), "1"),
    (re.compile(r"(?<=line 1: )( *)\d+ "), "4242 "),
    (re.compile(r"was lost for [\d.]+ s"), "was lost for 0.1 s"),
    (re.compile(r"(?<!lost for )\b\d+\.\d+ s\b(?! of)"), "2.0 s"),
    (re.compile(r"; it was (python3 \(pid \d+\))|(?<=; )(python3 \(pid \d+\)) had [\d.]+ MiB of it"), _had),
    (re.compile(r"\b\d+(\.\d+)? (MiB|KiB)(?= (of memory are used|are used|of them|of it|are left|left))"), r"240.0 \2"),
    (re.compile(r"[\d.]+ MiB of [\d.]+ MiB of memory are"), "240.0 MiB of 256.0 MiB of memory are"),
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "0123456789ab"),
    (re.compile(r"used [\d.]+ seconds of processor"), "used 1.02 seconds of processor"),
    (re.compile(r"\b\d+\.\d+ s of processor"), "2.0 s of processor"),
    (re.compile(r"ends in [\d.]+ (seconds?|minutes)\b(?= unless)"), "ends in 1.2 seconds"),
    (re.compile(r"ends in [\d.]+ (seconds?|minutes)\b(?! unless)"), "ends in 2.2 seconds"),
    (re.compile(r"After [\d.]+ seconds? port"), "After 1 second port"),
    (re.compile(r"waited [\d.]+ seconds"), "waited 4.9 seconds"),
    (re.compile(r"listen.py \d+|127.0.0.1:\d{5}\b"), lambda m: re.sub(r"\d{4,}$", "41000", m[0])),
    (re.compile(r"limit of 100.0 MiB was exceeded \([\d.]+ MiB"), "limit of 100.0 MiB was exceeded (120.0 MiB"),
    (re.compile(r"(?<=workers.py\))(, c\d+ \(exec sleep 300\))+"), ""),
    (re.compile(r"left \d{2,} processes running"), "left 51 processes running"),
    (re.compile(r"\d+ of 128 processes"), "120 of 128 processes"),
    (re.compile(r"was hit \d+ time"), "was hit 9 time"),
    (re.compile(r'"seconds": [\d.]+'), '"seconds": 1.0'),
)


# Numbered anew in the order in which they are first shown, so that those that differ still do.
_IDS = re.compile(r"(?<![\w/])[Cc](\d+)\b(?=\W)|(?<=/run/gamebox/c)(\d+)(?=\.log)")
_PIDS = re.compile(r"(?<=\bprocess )\d+|(?<=\bpid )\d+")


def normalised(*texts: str) -> tuple[str, ...]:
    """The texts of one situation with what differs from run to run made the same; ids and pids that differ stay different."""
    ids: dict[str, int] = {}
    pids: dict[str, int] = {}
    made = []
    for text in texts:
        for pattern, by in _VOLATILE:
            text = pattern.sub(by, text)
        text = _IDS.sub(lambda m: m[0].replace(m[1] or m[2], str(ids.setdefault(m[1] or m[2], len(ids) + 1))), text)
        text = _PIDS.sub(lambda m: str(pids.setdefault(m[0], 4242 + len(pids))), text)
        made.append(text.rstrip() + "\n")
    return tuple(made)


def _tidied(environment: Environment) -> None:
    """End what runs, and empty the workspace: one situation is nothing to the next."""
    seen = environment.processes()
    for command in seen.result.commands if seen.ok else ():
        if command.running or command.process_count:
            environment.kill(command.id)
    listed = environment.list(".", max_entries=1000)
    for entry in listed.result.entries if listed.ok else ():
        environment.delete(entry.path, recursive=True)
    for session in ("default", "one", "two", "three", "four"):
        environment.end_session(session)
    environment.run("true", session=None)  # what changes from here on is not of what was killed


@contextmanager
def staged() -> Iterator[Stage]:
    """A stage for a with block."""
    with Stage() as stage:
        yield stage
