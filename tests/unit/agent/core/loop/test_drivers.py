"""Drivers and layers: one layer serves run and arun, blocking parts never run on the event loop's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent import (
    Action,
    ActionRegistry,
    Agent,
    Budget,
    Environment,
    FunctionCallingLanguage,
    Goal,
    Hooks,
    Memory,
    RunStatus,
    ScriptedModel,
    Step,
)
from agent.core.kits import Kit
from agent.core.loop.layers import Flow, Layer
from agent.core.loop.streaming import ReplyDelta
from agent.core.loop.turns import Ask, Call
from agent.model.brain import Delta, delta_listener
from agent.tools import finish_action, think_action
from tests.unit.agent.core.loop.every_driver import Driver, under_every_driver

FINISH = {"tool": "finish", "args": {"summary": "done"}}
THINK = {"tool": "think", "args": {"thought": "hm"}}


def agent_of(brain: Any, *more: Action, environment: Environment | None = None, **options: Any) -> Agent:
    registry = ActionRegistry([think_action(), finish_action(), *more])
    return Agent([Goal("g")], FunctionCallingLanguage(), registry, brain, environment or Environment(), **options)


class Threads:
    """Notes on which thread each part ran."""

    def __init__(self) -> None:
        self.seen: dict[str, set[threading.Thread]] = {}

    def note(self, part: str) -> None:
        self.seen.setdefault(part, set()).add(threading.current_thread())


class Noting(Layer):
    def __init__(self, threads: Threads) -> None:
        self.threads = threads

    def before_step(self, step: Step, memory: Memory) -> None:
        self.threads.note("layer")

    def around_do(self, call: Call) -> Flow:
        self.threads.note("around_do")
        return (yield call)

    def sections(self) -> Mapping[str, str]:
        self.threads.note("sections")
        return {"layer": "seen"}


def test_blocking_parts_never_run_on_the_thread_of_the_loop() -> None:
    threads = Threads()

    class Noted(Memory):
        def __init__(self) -> None:
            threads.note("new memory")
            super().__init__()

        def add_memory(self, memory: Mapping[str, Any]) -> None:
            threads.note("memory")
            super().add_memory(memory)

        def get_memories(self, limit: int | None = None) -> list[dict[str, Any]]:
            threads.note("memories")
            return super().get_memories(limit)

    class Place(Environment):
        def describe(self) -> dict[str, str]:
            threads.note("describe")
            return {"place": "here"}

    script = ScriptedModel([THINK, FINISH])

    def brain(prompt: Any) -> Any:
        threads.note("brain")
        assert "## place\nhere" in str(prompt)
        assert "## layer\nseen" in str(prompt)
        return script(prompt)

    tool = Action("think", lambda thought: threads.note("tool"), "Think.", think_action().parameters)
    agent = agent_of(brain, environment=Place(), new_memory=Noted, layers=[Noting(threads)])
    agent.actions.register(tool, replace=True)

    async def main() -> Memory:
        threads.note("loop")
        return await agent.arun("task")

    memory = asyncio.run(main())
    assert [m["role"] for m in memory.items] == ["user", "assistant", "tool", "assistant", "tool"]
    (loop,) = threads.seen.pop("loop")
    assert threads.seen.keys() == {
        "new memory", "memory", "memories", "describe", "brain", "layer", "around_do", "sections", "tool",
    }  # fmt: skip
    for part, seen in threads.seen.items():
        assert loop not in seen, part


def test_a_coroutine_brain_is_awaited_on_the_loop_and_others_go_on() -> None:
    threads = Threads()
    ticks: list[int] = []

    async def brain(prompt: Any) -> Any:
        threads.note("brain")
        await asyncio.sleep(0.05)
        return THINK if len(ticks) < 3 else FINISH

    async def main() -> Any:
        threads.note("loop")

        async def tick() -> None:
            while True:
                await asyncio.sleep(0.01)
                ticks.append(1)

        ticking = asyncio.create_task(tick())
        runs = await asyncio.gather(*(agent_of(brain).aexecute("task") for _ in range(3)))
        ticking.cancel()
        return runs

    runs = asyncio.run(main())
    assert [run.status for run in runs] == [RunStatus.finished] * 3
    assert len(ticks) >= 3
    assert threads.seen["brain"] == threads.seen["loop"]


def test_a_coroutine_brain_works_without_a_loop() -> None:
    async def brain(prompt: Any) -> Any:
        await asyncio.sleep(0)
        return FINISH

    assert agent_of(brain).execute("task").ok


@under_every_driver
def test_an_overriding_subclass_is_obeyed_under_every_driver(drive: Driver) -> None:
    class Own(Agent):
        def construct_prompt(self, goals: Any, memory: Memory, actions: ActionRegistry) -> Any:
            return f"prompt of {len(memory.items)}"

        def prompt_llm_for_action(self, full_prompt: Any) -> Any:
            return self.generate_response(full_prompt.upper())

        def get_action(self, response: Any) -> tuple[Action | None, dict[str, Any]]:
            return super().get_action({**response, "args": {"thought": "own"}})

        def update_memory(self, memory: Memory, response: Any, result: Mapping[str, Any]) -> None:
            memory.add_memory({"role": "assistant", "content": f"own {result['tool_executed']}"})

        def should_terminate(self, response: Any) -> bool:
            return bool(response["args"] == {"thought": "last"})

    prompts: list[Any] = []
    noted: list[str] = []

    def brain(prompt: Any) -> Any:
        prompts.append(prompt)
        return {"tool": ("think", "end", "think")[len(prompts) - 1], "args": {"thought": "last" if len(prompts) == 3 else ""}}

    def end(thought: str) -> None:
        """End the run, if the agent has nothing against it."""

    def think(thought: str) -> None:
        """Think."""
        noted.append(thought)

    registry = ActionRegistry([Action.of(think), Action.of(end, terminal=True)])
    run = drive(Own([Goal("g")], FunctionCallingLanguage(), registry, brain, Environment()), None)
    assert (run.status, run.iterations) == (RunStatus.finished, 3)
    assert prompts == ["PROMPT OF 1", "PROMPT OF 2", "PROMPT OF 3"]
    assert [m["content"] for m in run.memory.items] == ["t", "own True", "own True", "own True"]
    assert noted == ["own", "own"]


@under_every_driver
def test_a_terminal_action_that_failed_ends_no_run_whatever_a_subclass_says(drive: Driver) -> None:
    class Own(Agent):
        def should_terminate(self, response: Any) -> bool:
            return True

    def end() -> None:
        """End the run."""
        raise ValueError("not yet")

    registry = ActionRegistry([Action.of(end, terminal=True), think_action()])
    brain = ScriptedModel([{"tool": "end"}, THINK])
    run = drive(Own([Goal("g")], FunctionCallingLanguage(), registry, brain, Environment()), None)
    assert (run.status, run.iterations) == (RunStatus.finished, 2)


@under_every_driver
def test_a_brain_that_raises_stop_iteration_has_failed(drive: Driver) -> None:
    replies = iter([THINK])
    run = drive(agent_of(lambda prompt: next(replies)), None)
    assert (run.status, run.reason, run.iterations) == (RunStatus.model_failed, "a brain raised StopIteration", 2)


def test_many_runs_whose_tools_need_a_thread_of_the_loop_go_on() -> None:
    async def fetch() -> str:
        """Fetch."""
        return await asyncio.to_thread(str, "page")

    def made() -> Agent:
        return agent_of(ScriptedModel([{"tool": "fetch"}, FINISH]), Action.of(fetch))

    async def main() -> list[Any]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        return await asyncio.wait_for(asyncio.gather(*(made().aexecute("task") for _ in range(4))), 30)

    assert [run.ok for run in asyncio.run(main())] == [True] * 4


class Both(Layer):
    """Changes prompts and answers, refuses one call, asks twice."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def around_ask(self, ask: Ask) -> Flow:
        self.seen.append("ask")
        reply = yield ask
        if reply == "?":
            reply = yield Ask(ask.prompt)
        return reply

    def around_do(self, call: Call) -> Flow:
        self.seen.append(f"do {call.tool}")
        if call.args.get("thought") == "no":
            return {"tool_executed": False, "error": "no", "code": "read_only", "hint": ""}
        envelope = yield call
        return {**envelope, "notices": [{"code": "seen", "message": "seen", "hint": ""}]}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_one_layer_serves_both_drivers(asynchronous: bool) -> None:
    layer = Both()
    no = {"tool": "think", "args": {"thought": "no"}}
    agent = agent_of(ScriptedModel(["?", THINK, no, FINISH]), layers=[layer])
    run = asyncio.run(agent.aexecute("task")) if asynchronous else agent.execute("task")
    assert run.ok
    assert [(s.envelope or {}).get("code") for s in run.steps] == [None, "read_only", None]
    assert [len((s.envelope or {}).get("notices", [])) for s in run.steps] == [1, 0, 1]
    assert layer.seen == ["ask", "do think", "ask", "do think", "ask", "do finish"]


def test_layers_of_a_run_replace_those_of_the_agent_and_leave_nothing_behind() -> None:
    mine, other = Both(), Both()
    agent = agent_of(ScriptedModel([FINISH, FINISH]), layers=[mine])
    before = dict(vars(agent))
    agent.execute("task", layers=[other])
    assert (mine.seen, other.seen) == ([], ["ask", "do finish"])
    assert {**vars(agent), "last_run": None} == before
    agent.execute("task")
    assert mine.seen == ["ask", "do finish"]


def test_the_first_layer_is_the_outermost() -> None:
    order: list[str] = []

    class Named(Layer):
        def __init__(self, name: str) -> None:
            self.name = name

        def around_do(self, call: Call) -> Flow:
            order.append(f"{self.name} before")
            envelope = yield call
            order.append(f"{self.name} after")
            return envelope

    agent_of(ScriptedModel([FINISH]), layers=[Named("a"), Named("b")]).run("task")
    assert order == ["a before", "b before", "b after", "a after"]


def test_a_layer_sees_what_the_brain_raises() -> None:
    class Again(Layer):
        def around_ask(self, ask: Ask) -> Flow:
            try:
                return (yield ask)
            except OSError:
                return (yield ask)

    def failing(errors: Iterable[Exception]) -> Any:
        left = list(errors)

        def brain(prompt: Any) -> Any:
            if left:
                raise left.pop(0)
            return FINISH

        return brain

    assert agent_of(failing([OSError("one")]), layers=[Again()]).execute("task").ok
    run = agent_of(failing([OSError("one"), OSError("two")]), layers=[Again()]).execute("task")
    assert (run.status, run.reason) == (RunStatus.model_failed, "two")


def test_cancelling_the_task_ends_the_run_after_the_call_under_way() -> None:
    began, cancelled, came_back = threading.Event(), threading.Event(), threading.Event()

    def slow(thought: str) -> str:
        began.set()
        assert cancelled.wait(60)
        came_back.set()
        return thought

    agent = agent_of(ScriptedModel([THINK] * 50))
    agent.actions.register(Action("think", slow, "Think.", think_action().parameters), replace=True)

    async def main() -> None:
        task = asyncio.create_task(agent.arun("task"))
        await asyncio.to_thread(began.wait)
        task.cancel()
        asyncio.get_running_loop().call_later(0.1, cancelled.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert came_back.is_set()

    asyncio.run(main())
    assert agent.last_run is not None
    assert (agent.last_run.status, agent.last_run.iterations) == (RunStatus.cancelled, 1)


# --- streams ------------------------------------------------------------------
def speaking(prompt: Any) -> Any:
    listener = delta_listener()
    if listener is not None:
        for kind, text in (("start", ""), ("text", "Let me "), ("text", "think.")):
            listener(Delta(kind, text))  # type: ignore[arg-type]
    return FINISH if any(message["role"] == "tool" for message in prompt.messages) else THINK


def kinds_of(events: Iterable[Any]) -> list[Any]:
    return [
        (type(event).__name__, event.delta.text)
        if isinstance(event, ReplyDelta)
        else (type(event).__name__, getattr(event, "tool", None))
        for event in events
    ]


STREAMED = [
    ("ReplyDelta", ""), ("ReplyDelta", "Let me "), ("ReplyDelta", "think."), ("ToolCalled", "think"), ("ToolAnswered", "think"),
    ("ReplyDelta", ""), ("ReplyDelta", "Let me "), ("ReplyDelta", "think."), ("ToolCalled", "finish"), ("ToolAnswered", "finish"),
    ("RunFinished", None),
]  # fmt: skip


def test_a_run_as_a_stream_of_events() -> None:
    agent = agent_of(speaking)
    events = list(agent.stream("task"))
    assert kinds_of(events) == STREAMED
    assert events[-1].run is agent.last_run  # type: ignore[union-attr]


def test_a_stream_on_the_event_loop_is_the_same() -> None:
    async def main() -> list[Any]:
        return [event async for event in agent_of(speaking).astream("task")]

    assert kinds_of(asyncio.run(main())) == STREAMED


def test_refused_calls_and_notices_are_in_the_stream() -> None:
    events = list(agent_of(ScriptedModel(["?", FINISH]), layers=[Both()]).stream("task"))
    assert kinds_of(events)[:2] == [("ToolCalled", "finish"), ("ToolAnswered", "finish")]
    unread = list(agent_of(ScriptedModel(["?", FINISH]), layers=()).stream("task"))
    assert kinds_of(unread)[:2] == [("ToolCalled", None), ("ToolAnswered", None)]


def test_closing_a_stream_cancels_the_run() -> None:
    agent = agent_of(ScriptedModel([THINK] * 50))
    stream = agent.stream("task")
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert agent.last_run is not None
    assert agent.last_run.status is RunStatus.cancelled
    assert not [thread for thread in threading.enumerate() if thread.name == "gamebox-run"]


def test_a_stream_raises_what_a_hook_raises() -> None:
    class Failing(Hooks):
        def on_result(self, step: Step, memory: Memory) -> None:
            raise LookupError("hook")

    with pytest.raises(LookupError, match="hook"):
        list(agent_of(ScriptedModel([THINK]), hooks=[Failing()]).stream("task"))


# --- an agent alone ------------------------------------------------------------------
def test_an_agent_alone_has_a_budget_line_and_stuck_notices_and_goes_on() -> None:
    prompts: list[str] = []

    def brain(prompt: Any) -> Any:
        prompts.append(str(prompt))
        return THINK

    run = agent_of(brain, budget=Budget(max_iterations=30)).execute("task")
    assert (run.status, run.iterations) == (RunStatus.max_iterations, 30)
    assert "This is step 7 of 30" in prompts[6]
    assert "going in circles" not in prompts[3]
    assert "## repetition" in prompts[4]
    assert "going in circles" in prompts[29]
    assert "the run ends if you go on" not in prompts[29]
    assert [m["role"] for m in run.memory.items] == ["user", *["assistant", "tool"] * 30]


def test_kits_on_request() -> None:
    class Counting(Kit):
        name = "counting"

        def __init__(self) -> None:
            self.count = 0

        def actions(self) -> list[Action]:
            return [Action("count", self.increase, "Count.")]

        def increase(self) -> int:
            self.count += 1
            return self.count

        def describe(self) -> Mapping[str, str]:
            return {"count": f"It is {self.count}."}

    prompts: list[str] = []
    script = ScriptedModel([{"tool": "count"}, FINISH])

    def brain(prompt: Any) -> Any:
        prompts.append(str(prompt))
        return script(prompt)

    registry = ActionRegistry([finish_action()])
    agent = Agent([Goal("g")], FunctionCallingLanguage(), registry, brain, Environment(), kits=[Counting()])
    assert agent.execute("task").ok
    assert "It is 1." in prompts[1]
    assert prompts[1].index("## budget") < prompts[1].index("## count")
    assert registry.get_action("count") is None


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"hooks": [print]}, "hooks of Agent must be a list of Layer, not builtin_function"),
    ({"hooks": 1}, "hooks of Agent must be a list of Layer, not int"),
    ({"layers": [Both]}, "layers of Agent must be a list of Layer, not the class Both"),
    ({"budget": 5}, "budget of Agent must be a Budget"),
    ({"new_memory": Memory()}, "new_memory of Agent must be a function that makes a memory"),
    ({"kits": [think_action()]}, "kits of Agent must be a list of Kit, not Action"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_a_wrong_option_is_a_clear_error(wrong: dict[str, Any], message: str) -> None:
    parts: dict[str, Any] = {
        "goals": [Goal("g")], "agent_language": FunctionCallingLanguage(), "action_registry": ActionRegistry(),
        "generate_response": ScriptedModel([]), "environment": Environment(),
    }  # fmt: skip
    with pytest.raises(TypeError, match=message):
        Agent(**{**parts, **wrong})
