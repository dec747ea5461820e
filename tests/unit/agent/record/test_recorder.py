"""Recording and resuming: whatever point a run is cut off at, it goes on, nothing is lost and nothing is done twice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent import (
    Action,
    Agent,
    AgentRun,
    Budget,
    FunctionCallingLanguage,
    Goal,
    Hooks,
    Memory,
    Response,
    ScriptedModel,
    ToolCall,
    Usage,
    standard_registry,
)
from agent.core.budget import charge
from agent.core.kits import EquippedEnvironment, Kit
from agent.core.status import RunStatus
from agent.errors import AgentErrorCode
from agent.layers.approvals import ApprovalPolicy, ApprovingEnvironment
from agent.record import events as ev
from agent.record.recorder import current_recorder
from agent.record.resume import begin, execute_as_part, execute_recorded, resume
from agent.record.store import EventLog, RunRecord, RunWriter, record_of, verify
from sandbox import LocalEnvironment
from sandbox.environment.base import Environment
from sandbox.errors import ErrorCode, SandboxError
from sandbox.network.connections import Connection


class Killed(BaseException):
    """Stands for SIGKILL: from here on nothing is written any more."""


class Mortal(RunWriter):
    """Dies at one of its events, before or after that is written."""

    dies_at, after, written = 10**9, False, 0

    def append(self, *events: ev.Event) -> int:
        if self.written + len(events) >= self.dies_at:
            if self.after and self.written < self.dies_at:
                super().append(*events)
            self.written += len(events) if self.written < self.dies_at else 0
            raise Killed
        self.written += len(events)
        return super().append(*events)


class Counter(Kit):
    """A kit with state, one action that may be repeated and one that may not."""

    name = "counter"

    def __init__(self, folder: Path) -> None:
        self.count, self.folder = 0, folder
        self._actions = [
            Action("count", self._count, "Count.", metadata={"idempotent": True}),
            Action("mark", self._mark, "Leave a mark on the host."),
        ]

    def actions(self) -> list[Action]:
        return self._actions

    def _count(self) -> int:
        self.count += 1
        return self.count

    def _mark(self) -> str:
        with (self.folder / "marks").open("a") as file:
            file.write("x")
        return "marked"

    def snapshot(self) -> Any:
        return {"count": self.count}

    def restore(self, state: Any) -> None:
        self.count = state["count"]


SCRIPT: list[Any] = [
    {"tool": "run", "args": {"command": "echo 1 >> done; echo one"}},
    Response("two", (ToolCall("write", json.dumps({"path": "file", "content": "x" * 9000}), "call-2"),)),
    {"tool": "count"},
    "no action at all",
    {"tool": "mark"},
    {"tool": "run", "args": {"command": "echo 2 >> done; exit 3"}},
    {"tool": "nonsense"},
    {"tool": "finish", "args": {"summary": "done"}},
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EventLog]:
    with EventLog(tmp_path_factory.mktemp("log") / "runs.db") as made:
        yield made


@pytest.fixture
def sandbox() -> Iterator[LocalEnvironment]:
    with LocalEnvironment(track_changes=False) as made:
        yield made


def agent_in(sandbox: Environment, folder: Path, script: list[Any], **options: Any) -> Agent:
    kit = Counter(folder)
    registry = standard_registry()
    for action in kit.actions():
        registry.register(action)

    def brain(prompt: Any) -> Any:
        charge(Usage(calls=1, input_tokens=10, cost_usd=0.01))
        return model(prompt)

    model = ScriptedModel(script)
    return Agent(
        [Goal("g")], FunctionCallingLanguage(), registry, brain, EquippedEnvironment(sandbox, [kit]), **options
    )


def without_times(value: Any) -> Any:
    """Data without what differs from run to run."""
    if isinstance(value, dict):
        left_out = {"timestamp", "duration_ms", "cpu_seconds", "max_rss_bytes", "id", "changes"}
        return {k: without_times(v) for k, v in value.items() if k not in left_out}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def cut_off(log: EventLog, sandbox: Environment, folder: Path, dies_at: int, after: bool) -> str | None:
    """A run that dies at that event; its id, or None where it came to its end."""
    with Mortal(log, f"{folder.name}-{dies_at}-{after}") as writer:
        agent = agent_in(sandbox, folder, SCRIPT)
        begin(agent, writer, "count things")
        writer.dies_at, writer.after = dies_at, after
        try:
            agent.execute("count things")
        except Killed:
            return writer.run
    return None


def test_a_run_and_its_record(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    agent = agent_in(sandbox, tmp_path, SCRIPT)
    run = execute_recorded(agent, "count things", log, name="counting", run="whole")
    assert run.status is RunStatus.finished
    record = record_of(log, "whole")
    assert (record.task, record.agent, record.status, record.reason) == (
        "count things",
        "counting",
        "finished",
        run.reason,
    )
    assert record.messages == run.memory.items
    assert record.usage == run.usage
    assert (run.usage.calls, run.usage.input_tokens) == (8, 80)
    assert sum((step.usage for step in record.steps), Usage()).calls == run.usage.calls
    assert [s.tool for s in record.steps] == [s.tool for s in run.steps]
    assert [s.envelope for s in record.steps] == [s.envelope for s in run.steps]
    assert record.kits == {"counter": {"count": 1}}
    kinds = [logged.kind for logged in log.logged("whole")]
    assert kinds[:9] == [
        "RunBegan", "MessageAdded", "StateChanged", "StepBegan", "ActionDecided", "ActionStarted", "ActionExecuted", "StepEnded",
        "StepBegan",
    ]  # fmt: skip
    assert kinds[-2:] == ["StepEnded", "RunEnded"]
    assert verify(log, "whole").intact


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.exhaustive
def test_cut_off_at_every_event(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path, after: bool) -> None:
    """Nothing is done twice, nothing is lost, and where nobody can know, the model is told so."""
    for dies_at in range(1 + after, 100, 2):  # the one before the odd events, the other after the even ones
        sandbox.run("rm -f done file", session=None).unwrap()
        folder = tmp_path / f"cut{dies_at}"
        folder.mkdir()
        ident = cut_off(log, sandbox, folder, dies_at, after)
        if ident is None:
            break
        record = record_of(log, ident)
        if record.status == "finished":
            continue  # it died behind its last event
        left = SCRIPT[sum(step.decided is not None for step in record.steps) :]
        agent = agent_in(sandbox, folder, left)
        with log.begin(ident) as writer:
            run = resume(agent, writer)
        check_whole(log, ident, run, sandbox, folder)
    assert dies_at > 30, "a run has that many events"


def check_whole(log: EventLog, ident: str, run: AgentRun, sandbox: LocalEnvironment, folder: Path) -> None:
    assert run.status is RunStatus.finished, (ident, run.reason)
    assert sandbox.read("done").unwrap().content == "1\n2\n", ident
    record = record_of(log, ident)
    assert verify(log, ident).intact
    assert (record.status, record.messages) == ("finished", run.memory.items)
    tools = [step.tool for step in record.steps]
    assert tools == ["run", "write", "count", None, "mark", "run", "nonsense", "finish"], ident
    assert record.kits == {"counter": {"count": 1}}, ident
    assert [m["role"] for m in record.messages] == ["user", *["assistant", "tool"] * 8], ident
    marks = (folder / "marks").read_text() if (folder / "marks").exists() else ""
    mark = record.steps[4].envelope or {}
    if mark.get("code") == "effects_unknown":
        assert mark["effects"] == "unknown"
        assert len(marks) <= 1
    else:
        assert marks == "x", ident
    others = [(s.envelope or {}).get("code") for n, s in enumerate(record.steps) if n != 4]
    assert others == [None, None, None, "unparsable_response", None, "unknown_tool", None], ident
    assert record.usage.calls in (7, 8), ident  # a reply that was cut off before it was kept was paid for all the same


def test_counters_go_on(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    cut_off(log, sandbox, tmp_path, 12, True)
    ident = f"{tmp_path.name}-12-True"
    used = record_of(log, ident)
    assert used.usage.calls == 2
    agent = agent_in(sandbox, tmp_path, SCRIPT[2:], budget=Budget(max_cost_usd=0.035))
    with log.begin(ident) as writer:
        run = resume(agent, writer)
    assert (run.status, run.usage.calls) == (RunStatus.max_cost, 4)
    agent = agent_in(sandbox, tmp_path, SCRIPT[4:], budget=Budget(max_cost_usd=0.035))
    with log.begin(ident) as writer:
        run = resume(agent, writer)
    assert (run.status, run.usage.calls) == (RunStatus.max_cost, 4)
    agent = agent_in(sandbox, tmp_path, SCRIPT[4:], budget=Budget(max_iterations=6))
    with log.begin(ident) as writer:
        run = resume(agent, writer)
    assert run.status is RunStatus.max_iterations
    record = record_of(log, ident)
    assert [s.number for s in record.steps] == [1, 2, 3, 4, 5, 6]
    assert record.resumed == 3
    with log.begin(ident) as writer, pytest.raises(SandboxError, match="all of its 6 steps"):
        resume(agent_in(sandbox, tmp_path, [], budget=Budget(max_iterations=6)), writer)


def test_a_finished_run_is_not_gone_on_with(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    execute_recorded(agent_in(sandbox, tmp_path, SCRIPT[-1:]), "end", log, run="ended")
    with log.begin("ended") as writer, pytest.raises(SandboxError) as caught:
        resume(agent_in(sandbox, tmp_path, []), writer)
    assert caught.value.code is AgentErrorCode.run_not_resumable


@pytest.mark.parametrize("dies_at", [4, 5, 6, 7, 8, 9])
def test_in_a_new_sandbox_the_model_is_told(
    log: EventLog, sandbox: LocalEnvironment, tmp_path: Path, dies_at: int
) -> None:
    """With a message after what was under way, which is answered as unknown and not carried out in the new sandbox."""
    ident = cut_off(log, sandbox, tmp_path, dies_at, True)
    assert ident is not None
    decided = [s for s in record_of(log, ident).steps if s.decided]
    with LocalEnvironment(track_changes=False) as fresh, log.begin(ident) as writer:
        agent = agent_in(fresh, tmp_path, SCRIPT[len(decided) :])
        run = resume(agent, writer, same=False, say="hurry up")
        assert fresh.read("done").unwrap().content == ("2\n" if decided else "1\n2\n")
    record = record_of(log, ident)
    assert record.messages == run.memory.items
    told = [n for n, m in enumerate(record.messages) if m["role"] == "user" and n]
    assert [record.messages[n]["content"] for n in told][1] == "hurry up"
    assert "new sandbox" in record.messages[told[0]]["content"]
    assert record.messages[told[0] - 1]["role"] in ("tool", "user")
    assert record.steps[-1].tool == "finish"
    if decided and not record_of(log, ident).steps[0].executed:
        raise AssertionError("the first step has no answer")


class Nudging(Hooks):
    """Adds messages at every hook that may, and remembers what the environment was asked."""

    def on_step_start(self, step: Any, memory: Memory) -> None:
        memory.add_memory({"role": "user", "content": f"step {step.number} begins", "source": "user"})

    def on_result(self, step: Any, memory: Memory) -> None:
        memory.add_memory({"role": "user", "content": f"step {step.number} ended"})


def test_messages_of_hooks_are_recorded_in_their_order(
    log: EventLog, sandbox: LocalEnvironment, tmp_path: Path
) -> None:
    agent = agent_in(sandbox, tmp_path, SCRIPT, hooks=[Nudging()])
    run = execute_recorded(agent, "t", log, run="nudged")
    record = record_of(log, "nudged")
    assert record.messages == run.memory.items
    assert sum(logged.kind == "UserSpoke" for logged in log.logged("nudged")) == 8


def test_secrets_are_not_in_the_log(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    sandbox.secret("TOKEN", "s3cr3t-of-the-host")
    script = [{"tool": "think", "args": {"thought": "it is s3cr3t-of-the-host"}}, SCRIPT[-1]]
    execute_recorded(agent_in(sandbox, tmp_path, script), "use s3cr3t-of-the-host", log, run="secret")
    assert "s3cr3t-of-the-host" in str(script)
    for logged in log.logged("secret"):
        assert "s3cr3t-of" not in logged.data, logged
    assert "***TOKEN***" in str(record_of(log, "secret").steps[0].args)


def test_a_log_that_fails_ends_the_run(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    """At every event: nothing is carried out without being recorded, and the run says why it ended."""
    for number in range(2, 12):
        with EventLog(tmp_path / f"{number}.db") as log:
            sandbox.run("rm -f done", session=None)
            agent = agent_in(sandbox, tmp_path, SCRIPT)
            with log.begin("r") as writer:
                begin(agent, writer, "t")
                _fail_at(log, writer, number)
                run = agent.execute("t")
            assert run.status is RunStatus.failed, number
            assert "could not be recorded" in run.reason
            assert isinstance(run.error, SandboxError)
            done = sandbox.run("cat done 2>/dev/null", session=None).unwrap().output
            started = sum(logged.kind == "ActionStarted" for logged in log.logged("r"))
            assert len(done.split()) <= started


def _fail_at(log: EventLog, writer: RunWriter, number: int) -> None:
    own = writer.append

    def append(*events: ev.Event) -> int:
        head = log.head("r")
        if head is not None and head[0] + len(events) > number:
            raise SandboxError(ErrorCode.host_disk_full, "There is no room left.", "Make some.")
        return own(*events)

    writer.append = append  # type: ignore[method-assign]


def test_paused_between_steps_and_resumed(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    agent = agent_in(sandbox, tmp_path, SCRIPT)
    with log.begin("paused") as writer:
        recorder = begin(agent, writer, "t")
        agent.hooks.append(_At(3, recorder.pause))
        run = agent.execute("t")
    assert (run.status, record_of(log, "paused").status) == (RunStatus.paused, "paused")
    assert len(record_of(log, "paused").steps) == 3
    with log.begin("paused") as writer:
        run = resume(agent_in(sandbox, tmp_path, SCRIPT[3:]), writer, say="go on")
    assert run.status is RunStatus.finished
    assert "go on" in [m["content"] for m in run.memory.items]
    assert record_of(log, "paused").messages == run.memory.items


class _At(Hooks):
    def __init__(self, step: int, act: Callable[[], None]) -> None:
        self.step, self.act = step, act

    def on_action(self, step: Any, memory: Memory) -> None:
        if step.number == self.step:
            self.act()


def test_ctrl_c_while_the_model_thinks(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    run = execute_recorded(agent_in(sandbox, tmp_path, [SCRIPT[0], KeyboardInterrupt()]), "t", log, run="thinking")
    assert run.status is RunStatus.paused
    with log.begin("thinking") as writer:
        assert resume(agent_in(sandbox, tmp_path, SCRIPT[1:]), writer).status is RunStatus.finished
    assert len(record_of(log, "thinking").steps) == 8


def test_ctrl_c_while_an_action_is_under_way(log: EventLog, tmp_path: Path) -> None:
    """The action goes on in the sandbox; resumed, it is asked again by its id, and answered once."""
    with Interrupting(track_changes=False) as sandbox:
        run = execute_recorded(agent_in(sandbox, tmp_path, SCRIPT), "t", log, run="acting")
        assert run.status is RunStatus.paused
        assert run.memory.items[-1]["content"]["code"] == "cancelled", "the transcript is valid all the same"
        assert record_of(log, "acting").pending is not None
        with log.begin("acting") as writer:
            run = resume(agent_in(sandbox, tmp_path, SCRIPT[1:]), writer)
        assert run.status is RunStatus.finished
        assert sandbox.read("done").unwrap().content == "1\n2\n"


class Interrupting(LocalEnvironment):
    """Ctrl-C hits once, after the first command was carried out and before its answer is seen."""

    hit = False

    def perform(self, request: Any, watch: Any = None) -> Any:
        answer = super().perform(request, watch)
        if request.operation == "run" and not self.hit:
            self.hit = True
            raise KeyboardInterrupt
        return answer


def test_ctrl_c_elsewhere_is_a_pause_in_the_log(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    agent = agent_in(sandbox, tmp_path, SCRIPT, hooks=[_At(2, interrupt)])
    with pytest.raises(KeyboardInterrupt):
        execute_recorded(agent, "t", log, run="elsewhere")
    assert record_of(log, "elsewhere").status == "paused"
    with log.begin("elsewhere") as writer:
        run = resume(agent_in(sandbox, tmp_path, SCRIPT[2:]), writer)
    assert run.status is RunStatus.finished
    assert sandbox.read("done").unwrap().content == "1\n2\n"


def test_a_run_within_a_run_is_its_part(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    def child() -> str:
        above = current_recorder()
        assert above is not None
        return execute_as_part(agent_in(sandbox, tmp_path, [SCRIPT[-1]]), "a part").status.value

    agent = agent_in(sandbox, tmp_path, [{"tool": "part"}, SCRIPT[-1]])
    agent.actions.register(Action("part", child, "A part."))
    execute_recorded(agent, "whole", log, run="above")
    (part,) = log.children("above")
    assert record_of(log, "above").children == [part]
    assert {logged.parent for logged in log.logged(part)} == {"above"}
    assert part not in log.runs()
    assert record_of(log, part).status == "finished"
    assert execute_as_part(agent_in(sandbox, tmp_path, [SCRIPT[-1]]), "alone").ok, "outside of a run it is one of its own"
    assert current_recorder() is None


def test_connections_are_recorded_up_to_a_bound(
    log: EventLog, sandbox: LocalEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.record.recorder.MOST_CONNECTIONS", 3)
    heard: list[Connection] = []
    sandbox.on_connection = heard.append
    agent = agent_in(sandbox, tmp_path, SCRIPT[-1:])
    with log.begin("connected") as writer:
        begin(agent, writer, "t")
        for number in range(5):
            assert sandbox.on_connection is not None
            sandbox.on_connection(Connection(f"host{number}.example.com", 443, "denied"))
        agent.execute("t")
    hosts = [c.get("host") for c in record_of(log, "connected").connections]
    assert hosts == ["host0.example.com", "host1.example.com", None]
    assert len(heard) == 5


def test_connections_after_the_end_of_a_part_are_not_its_own(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    def connect(host: str) -> None:
        assert sandbox.on_connection is not None
        sandbox.on_connection(Connection(host, 443, "denied"))

    def part() -> str:
        below = agent_in(sandbox, tmp_path, [SCRIPT[-1]], hooks=[_At(1, lambda: connect("within.example.com"))])
        return execute_as_part(below, "a part").status.value

    agent = agent_in(sandbox, tmp_path, [{"tool": "part"}, {"tool": "count"}, SCRIPT[-1]])
    agent.actions.register(Action("part", part, "A part."))
    agent.hooks.append(_At(2, lambda: connect("behind.example.com")))
    execute_recorded(agent, "whole", log, run="listening")
    (below,) = log.children("listening")
    assert [c["host"] for c in record_of(log, below).connections] == ["within.example.com"]
    assert [c["host"] for c in record_of(log, "listening").connections] == ["within.example.com", "behind.example.com"]
    assert list(log.logged(below))[-1].kind == "RunEnded"


def test_a_memory_with_a_state_of_its_own(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    class Condensing(Memory):
        hidden = 0

        def add_memory(self, memory: Mapping[str, Any]) -> None:
            super().add_memory(memory)
            self.hidden = len(self.items) // 4

        def snapshot(self) -> Any:
            return {"hidden": self.hidden}

        def restore(self, state: Any) -> None:
            self.hidden = state["hidden"] if state else 0

    agent = agent_in(sandbox, tmp_path, SCRIPT[:4], new_memory=Condensing)
    assert execute_recorded(agent, "t", log, run="condensed").status is RunStatus.model_failed
    before: RunRecord = record_of(log, "condensed")
    assert before.condensed == {"hidden": 2}
    with log.begin("condensed") as writer:
        run = resume(agent_in(sandbox, tmp_path, SCRIPT[4:], new_memory=Condensing), writer)
    assert run.status is RunStatus.finished
    assert record_of(log, "condensed").condensed == {"hidden": 4}


def test_an_environment_that_is_lost_leaves_the_action_under_way(log: EventLog, tmp_path: Path) -> None:
    """It may be reached again, and then knows whether it was carried out."""
    sandbox = LocalEnvironment(track_changes=False).start()
    agent = agent_in(sandbox, tmp_path, [SCRIPT[0], SCRIPT[1]])
    with log.begin("lost") as writer:
        begin(agent, writer, "t")
        agent.hooks.insert(1, _At(2, sandbox.close))
        run = agent.execute("t")
    assert run.status is RunStatus.environment_lost
    record = record_of(log, "lost")
    assert (record.status, len(record.steps)) == ("environment_lost", 2)
    assert record.pending is not None
    assert record.pending.started is not None
    assert record.pending.executed is None


# --- after a recorded run ------------------------------------------------------------------
def parts_of_agent(agent: Agent) -> tuple[Any, ...]:
    layers: list[Any] = [agent.environment]
    while hasattr(type(layers[-1]), "approver") and "inner" in vars(layers[-1]):
        layers.append(layers[-1].inner)
    return (agent.generate_response, list(agent.hooks), layers, vars(agent).keys())


def test_d1_a_run_grows_no_more_once_it_is_recorded(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    """The same agent records two runs and then works on without a record: each run has its own events and no others."""
    finish = SCRIPT[-1]
    agent = agent_in(sandbox, tmp_path, [finish] * 3)
    before = parts_of_agent(agent)
    execute_recorded(agent, "one", log, run="d1-one")
    assert parts_of_agent(agent) == before
    one = log.head("d1-one")
    execute_recorded(agent, "two", log, run="d1-two")
    two = log.head("d1-two")
    assert agent.execute("three").ok
    assert (log.head("d1-one"), log.head("d1-two")) == (one, two)
    assert [record_of(log, run).ended_steps for run in ("d1-one", "d1-two")] == [1, 1]
    assert parts_of_agent(agent) == before


def test_d1_an_agent_is_as_it_was_whatever_ended_its_run(log: EventLog, sandbox: LocalEnvironment, tmp_path: Path) -> None:
    class Broken(Hooks):
        def on_terminate(self, run: AgentRun) -> None:
            raise RuntimeError("a hook")

    agent = agent_in(sandbox, tmp_path, [SCRIPT[-1]], hooks=[Broken()])
    before = parts_of_agent(agent)
    with pytest.raises(RuntimeError, match="a hook"):
        execute_recorded(agent, "one", log, run="d1-broken")
    assert parts_of_agent(agent) == before


@pytest.mark.parametrize("outermost", [True, False])
def test_d1_approvals_are_where_they_were(
    outermost: bool, log: EventLog, sandbox: LocalEnvironment, tmp_path: Path
) -> None:
    agent = agent_in(sandbox, tmp_path, [SCRIPT[-1]] * 2)
    agent.environment = ApprovingEnvironment(agent.environment, ApprovalPolicy(), None, registry=agent.actions)
    if not outermost:
        agent.environment = EquippedEnvironment(agent.environment, [])
    before = parts_of_agent(agent)
    execute_recorded(agent, "one", log, run=f"d1-asking-{outermost}")
    assert parts_of_agent(agent) == before
    assert agent.execute("two").ok


def test_d1_nothing_is_added_by_a_writer_that_is_closed(log: EventLog) -> None:
    with log.begin("d1-closed") as writer:
        writer.append(ev.RunBegan(task="t"))
    with pytest.raises(SandboxError, match="is closed: nothing can be added") as caught:
        writer.append(ev.StepBegan(step=1))
    assert caught.value.code is AgentErrorCode.log_unusable
    assert log.head("d1-closed") == (1, verify(log, "d1-closed").head.partition(":")[2])


def test_d2_an_agent_that_resumed_a_run_takes_its_next_task(
    log: EventLog, sandbox: LocalEnvironment, tmp_path: Path
) -> None:
    with log.begin("d2") as writer:
        agent = agent_in(sandbox, tmp_path, [{"tool": "count"}], budget=Budget(max_iterations=1))
        begin(agent, writer, "count")
        assert agent.execute("count").status is RunStatus.max_iterations
        again = agent_in(sandbox, tmp_path, [SCRIPT[-1]] * 2)
        before = parts_of_agent(again)
        assert resume(again, writer).ok
    assert parts_of_agent(again) == before
    assert again.execute("a brand new task").memory.items[0] == {"role": "user", "content": "a brand new task"}
    assert record_of(log, "d2").ended_steps == 2
