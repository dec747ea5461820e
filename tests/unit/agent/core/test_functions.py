"""Actions made of functions: schema, descriptions and defaults from annotations and docstring; what cannot be one says why."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, field_validator

from agent import Action, ActionRegistry, ActionWarning, Agent, Environment, ScriptedModel, action
from agent.tools import finish_action
from sandbox.environment import host_actions
from sandbox.environment.coroutines import awaiting_on, run_awaitable


class Colour(Enum):
    red = "red"
    blue = "blue"


class Address(BaseModel):
    street: str
    number: int = Field(default=1, ge=1, description="Number of the house.")


class Letter(BaseModel):
    """A letter."""

    title: str
    to: Address
    copies: list[Address] = []

    @field_validator("title")
    @classmethod
    def has_no_dots(cls, title: str) -> str:
        if "." in title:
            raise ValueError("a title has no dots")
        return title


@dataclass
class Span:
    first: date
    last: date


class Unknown:
    pass


def greet(name: str, times: int = 1) -> str:
    """Greet somebody.

    It is polite.

    Args:
        name: Whom to greet,
            in full.
        times: How often.

    Returns:
        The greeting.
    """
    return " ".join([f"Hello {name}!"] * times)


def test_the_schema_of_a_function_comes_from_its_annotations_and_docstring() -> None:
    made = Action.of(greet)
    assert (made.name, made.description, made.terminal) == ("greet", "Greet somebody.\n\nIt is polite.", False)
    assert made.parameters == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Whom to greet, in full."},
            "times": {"type": "integer", "description": "How often.", "default": 1},
        },
        "required": ["name"],
        "additionalProperties": False,
    }
    assert made.function is greet
    assert made.execute(name="Ann") == "Hello Ann!"
    assert made("Ann", times=2) == "Hello Ann! Hello Ann!"


def numpy_style(name: str, times: int) -> None:
    """Greet.

    Parameters
    ----------
    name : str
        Whom to greet.
    times : int
        How often.
    """


def sphinx_style(name: str, times: int) -> None:
    """Greet.

    :param name: Whom to greet.
    :param times: How often.
    :returns: nothing
    """


def annotated_style(
    name: Annotated[str, "Whom to greet."], times: Annotated[int, Field(description="How often.", ge=1)]
) -> None:
    """Greet.

    Args:
        name: not this
    """


@pytest.mark.parametrize("function", [numpy_style, sphinx_style, annotated_style])
def test_arguments_are_described_in_every_usual_style(function: Callable[..., Any]) -> None:
    made = Action.of(function)
    described = {name: schema["description"] for name, schema in made.parameters["properties"].items()}
    assert (made.description, described) == ("Greet.", {"name": "Whom to greet.", "times": "How often."})


def many(
    when: date,
    colour: Colour,
    where: Path,
    sizes: tuple[int, int],
    letter: Letter,
    span: Span,
    how: Literal["fast", "slow"] = "fast",
    tags: list[str] | None = None,
    note: str = None,  # type: ignore[assignment]  # noqa: RUF013  usual in older code
    schema: dict[str, int] = {},  # noqa: B006
    pause: timedelta = timedelta(seconds=1),
) -> dict[str, Any]:
    """Take many kinds."""
    return dict(locals())


MANY = {
    "when": "2026-02-01",
    "colour": "blue",
    "where": "a/b",
    "sizes": [1, 2],
    "letter": {"title": "Hi", "to": {"street": "Elm"}, "copies": [{"street": "Oak", "number": 3}]},
    "span": {"first": "2026-01-01", "last": "2026-01-02"},
}


def test_a_function_gets_values_of_its_own_types() -> None:
    registry = ActionRegistry([many])
    made = registry.get_actions()[0]
    assert registry.validate_args(made, MANY) == (True, "ok")
    got = made.execute(**MANY)
    assert (got["when"], got["colour"], got["where"], got["sizes"]) == (
        date(2026, 2, 1),
        Colour.blue,
        Path("a/b"),
        (1, 2),
    )
    assert got["letter"] == Letter(title="Hi", to=Address(street="Elm"), copies=[Address(street="Oak", number=3)])
    assert got["span"] == Span(date(2026, 1, 1), date(2026, 1, 2))
    assert made.execute(**MANY, note=None, tags=None)["note"] is None
    properties = made.parameters["properties"]
    assert properties["how"] == {"type": "string", "enum": ["fast", "slow"], "default": "fast"}
    assert properties["note"]["default"] is None
    assert properties["pause"]["default"] == "PT1S"
    assert {"type": "null"} in properties["note"]["anyOf"]
    assert "title" in made.parameters["$defs"]["Letter"]["properties"], "a field called title is no title"
    assert not [schema for schema in properties.values() if "title" in schema]


def test_a_default_that_json_cannot_hold_is_not_shown() -> None:
    def wait(seconds: float = math.inf, place: Any = Unknown()) -> tuple[float, Any]:  # noqa: B008
        """Wait."""
        return seconds, place

    made = Action.of(wait)
    assert made.parameters["properties"] == {"seconds": {"type": "number"}, "place": {}}
    assert made.parameters["required"] == []
    assert made.execute()[0] == math.inf


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"colour": "green"}, "colour"),
        ({"letter": {"title": "Hi", "to": {"street": "Elm", "number": 0}}}, "letter"),
        ({"sizes": [1]}, "sizes"),
        ({"when": 3}, "when"),
    ],
)
def test_wrong_values_never_reach_the_function(changes: dict[str, Any], said: str) -> None:
    registry = ActionRegistry([many])
    fits, message = registry.validate_args(registry.get_actions()[0], {**MANY, **changes})
    assert not fits
    assert said in message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"when": "tomorrow"}, "when of many is invalid: Input should be a valid date"),
        (
            {"letter": {"title": "a.b", "to": {"street": "Elm"}}},
            "letter.title of many is invalid: Value error, a title has no dots.",
        ),
        ({"unheard": 1}, "many has no argument 'unheard'."),
    ],
)
def test_what_only_pydantic_can_check_is_told_with_its_argument(changes: dict[str, Any], said: str) -> None:
    answer = Environment().execute_action(Action.of(many), {**MANY, **changes})
    assert (answer["code"], answer["effects"]) == ("invalid_arguments", "none")
    assert answer["error"].startswith(said)


def reply_to(letter: Letter) -> Letter:
    """Reply to a letter."""
    return Letter(title=f"Re {letter.title}", to=letter.to)


def spans() -> list[Span]:
    """List spans."""
    return [Span(date(2026, 1, 1), date(2026, 1, 2))]


def test_models_and_other_values_are_results() -> None:
    answer = Environment().execute_action(Action.of(reply_to), {"letter": {"title": "Hi", "to": {"street": "Elm"}}})
    assert answer["result"] == {"title": "Re Hi", "to": {"street": "Elm", "number": 1}, "copies": []}
    assert Environment().execute_action(Action.of(spans), {})["result"] == [
        {"first": "2026-01-01", "last": "2026-01-02"}
    ]


def test_what_is_given_wins() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

    def bare(name, *more, **others):  # type: ignore[no-untyped-def]
        """Not this."""
        return name, others

    made = Action.of(
        bare, name="other", description="This.", parameters=schema, terminal=True, metadata={"timeout_s": 3}
    )
    assert (made.name, made.description, made.parameters, made.terminal) == ("other", "This.", schema, True)
    assert made.metadata == {"timeout_s": 3}
    assert made.execute(name="x", more=2) == ("x", {"more": 2})


def no_type(name: str, times=1) -> None:  # type: ignore[no-untyped-def]
    """Do."""


def anything(name: str, *rest: str) -> None:
    """Do."""


def keywords(name: str, **rest: str) -> None:
    """Do."""


def positional(name: str, /, times: int) -> None:
    """Do."""


def strange(name: str, thing: Unknown) -> None:
    """Do."""


def calls(name: str, back: Callable[[], None]) -> None:
    """Do."""


def missing(name: str, thing: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Do."""


def with_field(name: str, times: int = Field(default=1, ge=1)) -> None:
    """Do."""


def yields(name: str) -> Iterator[int]:
    """Do."""
    yield 1


class Tools:
    def __init__(self) -> None:
        self.calls = 0

    def count(self, by: int) -> int:
        """Count."""
        self.calls += by
        return self.calls

    def __call__(self, by: int) -> int:
        """Count, too."""
        return self.count(by)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_type, "parameter 'times' has no type. Annotate it, as in times: str, or describe"),
        (
            anything,
            r"parameter '\*rest' can be anything. Name each parameter, or describe the arguments yourself with parameters=",
        ),
        (keywords, r"parameter '\*\*rest' can be anything"),
        (positional, "parameter 'name' is positional-only"),
        (strange, "type of its parameter 'thing' has no JSON schema: Unable to generate pydantic-core schema for"),
        (calls, "type of its parameter 'back' has no JSON schema"),
        (missing, "type of its parameter 'thing' names 'Nowhere', which its module does not define"),
        (with_field, "default of its parameter 'times' is a Field"),
        (yields, "it yields values. Return a list"),
        (Tools.count, "it is a method without its object"),
        (Tools, "needs a function, not the class Tools"),
        (functools.partial(greet, times=2), "has no name that a model could call"),
        (lambda: 1, "has no name that a model could call"),
        (3, "needs a function, not int 3"),
        (len, "positional-only"),
    ],
)
def test_what_cannot_be_an_action_says_why(function: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        Action.of(function)


def test_methods_partials_and_callable_objects_are_functions() -> None:
    tools = Tools()
    assert Action.of(tools.count).execute(by=2) == 2
    assert Action.of(tools, name="count").execute(by=3) == 5
    partial = Action.of(functools.partial(greet, times=2), name="greet_twice")
    assert partial.execute(name="Ann") == "Hello Ann! Hello Ann!"


def test_the_decorator_leaves_the_function_callable() -> None:
    @action
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    @action(name="stop", terminal=True)
    def stop_here(reason: str = "done") -> str:
        """Stop."""
        return reason

    assert isinstance(double, Action)
    assert (double(4), double.name, double.__doc__) == (8, "double", "Double a number.")
    assert (stop_here.name, stop_here.terminal, stop_here()) == ("stop", True, "done")


def test_a_registry_takes_functions_and_actions() -> None:
    registry = ActionRegistry([greet, finish_action()])
    registry.register(reply_to)
    assert [each.name for each in registry.get_actions()] == ["greet", "finish", "reply_to"]
    with pytest.raises(ValueError, match="already registered: greet"):
        registry.register(greet)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("greet", "needs a list of actions and functions, not str 'greet'"),
        (greet, "needs a list of actions and functions, not function"),
        (Action.of(greet), "needs a list of actions and functions, not Action"),
        ({"greet": greet}, "needs a list of actions and functions, not dict"),
        (["greet"], "takes actions and functions, not str 'greet'"),
        ([Action], "Action is a class of actions: register an instance"),
        ([no_type], "parameter 'times' has no type"),
    ],
)
def test_a_registry_says_what_it_cannot_take(wrong: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        ActionRegistry(wrong)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((greet,), r"use Action.of\(function\)"),
        ((3, greet), "The name of action 3 must be a text, not int 3"),
        (("a", greet, 3), "The description of action 'a' must be a text, not int 3"),
        (("a", greet, "d", ["x"]), "The parameters of action 'a' must be a JSON schema, as a dict, not list"),
        (("a", greet, "d", {}, "yes"), "The terminal of action 'a' must be True or False, not str 'yes'"),
        (("a", greet, "d", {}, False, {"metadata": 3}), "The metadata of action 'a' must be a dict"),
        (("a", "greet", "d"), "The function of action 'a' cannot be called: 'greet'"),
    ],
)
def test_wrong_arguments_of_an_action_are_told_in_plain_words(arguments: tuple[Any, ...], said: str) -> None:
    options = arguments[5] if len(arguments) > 5 else {}
    with pytest.raises(TypeError, match=said):
        Action(*arguments[:5], **options)


def test_a_function_without_a_docstring_is_warned_of() -> None:
    def silent(name: str) -> None:
        pass

    with pytest.warns(ActionWarning, match="'silent': its description is empty"):
        ActionRegistry([silent])


def agent_with(script: list[Any], *functions: Any, environment: Environment | None = None) -> Agent:
    tools = [*functions, finish_action()]
    return Agent("Do it.", action_registry=tools, generate_response=ScriptedModel(script), environment=environment)


def run_with(script: list[Any], *functions: Any, environment: Environment | None = None) -> Any:
    return agent_with(script, *functions, environment=environment).execute("go")


FINISH = {"tool": "finish", "args": {"summary": "done"}}


def test_an_agent_calls_a_function_with_two_arguments() -> None:
    wrong = {"tool": "greet", "args": {"name": "Ann", "times": "two"}}
    run = run_with([wrong, {"tool": "greet", "args": {"name": "Ann", "times": 2}}, FINISH], greet)
    assert [step.envelope.get("code") for step in run.steps] == ["invalid_arguments", None, None]
    assert run.steps[1].envelope["result"] == "Hello Ann! Hello Ann!"


THREADS: list[tuple[int, int]] = []


async def ask(question: str, seconds: float = 0.0) -> str:
    """Ask over the network."""
    THREADS.append((threading.get_ident(), id(asyncio.get_running_loop())))
    await asyncio.sleep(seconds)
    if question == "bad":
        raise ConnectionError("nobody is there")
    return question.upper()


def test_a_coroutine_function_is_awaited() -> None:
    THREADS.clear()
    run = run_with([{"tool": "ask", "args": {"question": word}} for word in ("a", "bad", "c")] + [FINISH], ask)
    results = [(step.envelope.get("result"), step.envelope.get("code")) for step in run.steps[:3]]
    assert results == [("A", None), (None, "tool_error"), ("C", None)]
    assert len(set(THREADS)) == 1, "one loop for all calls: a client that a tool keeps stays usable"
    assert THREADS[0][0] != threading.get_ident()


def test_a_coroutine_function_is_awaited_on_the_callers_loop() -> None:
    THREADS.clear()

    async def main() -> tuple[int, int, Any]:
        loop = asyncio.get_running_loop()
        with awaiting_on(loop):
            run = await asyncio.to_thread(run_with, [{"tool": "ask", "args": {"question": "a"}}, FINISH], ask)
        return threading.get_ident(), id(loop), run

    *here, run = asyncio.run(main())
    assert run.steps[0].envelope["result"] == "A"
    assert [tuple(here)] == THREADS


def test_arun_awaits_coroutine_functions_on_its_loop_and_calls_others_in_threads() -> None:
    THREADS.clear()
    threads: list[int] = []

    def where() -> None:
        """Note the thread."""
        threads.append(threading.get_ident())

    async def main() -> tuple[int, int, Any]:
        agent = agent_with([{"tool": "ask", "args": {"question": "a"}}, {"tool": "where"}, FINISH], ask, where)
        await agent.arun("go")
        return threading.get_ident(), id(asyncio.get_running_loop()), agent.last_run

    *here, run = asyncio.run(main())
    assert (run.status, run.steps[0].envelope["result"]) == ("finished", "A")
    assert [tuple(here)] == THREADS
    assert threads
    assert threads[0] != here[0]


def test_a_run_within_an_event_loop_awaits_coroutine_functions_elsewhere() -> None:
    async def main() -> Any:
        with awaiting_on(asyncio.get_running_loop()):
            return run_with(
                [{"tool": "ask", "args": {"question": "a"}}, FINISH], ask
            )  # blocks the loop, as every run does

    assert asyncio.run(main()).steps[0].envelope["result"] == "A"


def test_a_coroutine_function_is_cancelled_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    begun = threading.Event()

    class Thread(threading.Thread):
        """Its time counts from when the function has begun."""

        def join(self, timeout: float | None = None) -> None:
            assert begun.wait(60)
            super().join(timeout)

    monkeypatch.setattr("sandbox.environment.host_actions.threading", SimpleNamespace(Thread=Thread))

    async def slow(seconds: float) -> None:
        """Wait."""
        begun.set()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    made = Action.of(slow, metadata={"timeout_s": 0.1})
    before = time.monotonic()
    answer = Environment().execute_action(made, {"seconds": 30})
    assert time.monotonic() - before < 20
    assert (answer["code"], answer["error"]) == ("timeout", "slow took more than 0.1 seconds and was cancelled.")
    assert ended == ["cancelled"]


def test_a_coroutine_function_that_is_stopped_before_it_began_comes_back() -> None:
    loop, free = asyncio.new_event_loop(), threading.Event()
    stops: list[Callable[[], None]] = []
    began: list[bool] = []
    caught: list[BaseException] = []

    async def slow() -> None:
        began.append(True)

    def call() -> None:
        host_actions._STOPS.set((stops,))
        with awaiting_on(loop), pytest.raises(host_actions.CallStoppedError) as error:
            run_awaitable(slow())
        caught.append(error.value)

    threads = [threading.Thread(target=target, daemon=True) for target in (loop.run_forever, call)]
    loop.call_soon(free.wait)
    for thread in threads:
        thread.start()
    while not stops:
        assert threads[1].is_alive()
        time.sleep(0.001)
    stops[0]()
    free.set()
    threads[1].join(60)
    loop.call_soon_threadsafe(loop.stop)
    threads[0].join(60)
    loop.close()
    assert (len(caught), began) == (1, [])


def test_a_coroutine_function_that_blocks_its_loop_is_not_said_to_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.environment.host_actions.STOP_SECONDS", 0.1)
    free = threading.Event()

    async def blocks() -> None:
        """Block."""
        free.wait(60)

    answer = Environment().execute_action(Action.of(blocks, metadata={"timeout_s": 0.1}), {})
    free.set()
    assert answer["code"] == "timeout"
    assert "may still be at work" in answer["hint"]


def test_a_subclass_may_define_a_coroutine() -> None:
    class Fetch(Action):
        name = "fetch"
        description = "Fetch."

        async def execute(self, /, **kwargs: Any) -> str:
            await asyncio.sleep(0)
            return "fetched"

    assert run_with([{"tool": "fetch"}, FINISH], Fetch()).steps[0].envelope["result"] == "fetched"


def test_a_function_can_ask_for_the_environment() -> None:
    class Named(Environment):
        def describe(self) -> dict[str, str]:
            return {"name": "here"}

    def look(part: str, environment: Environment) -> str:
        """Look at the environment.

        Args:
            part: Which part.
        """
        return environment.describe()[part]

    assert list(Action.of(look).parameters["properties"]) == ["part"]
    run = run_with([{"tool": "look", "args": {"part": "name"}}, FINISH], look, environment=Named())
    assert run.steps[0].envelope["result"] == "here"
    with pytest.raises(RuntimeError, match="look needs an environment"):
        Action.of(look).execute(part="name")


def test_an_environment_may_be_optional_and_a_result_of_any_type() -> None:
    def look(part: str, environment: Environment | None = None) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
        """Look."""
        return part if environment is None else "in one"

    assert list(Action.of(look).parameters["properties"]) == ["part"]
    assert run_with([{"tool": "look", "args": {"part": "a"}}, FINISH], look).steps[0].envelope["result"] == "in one"


def test_a_model_cannot_name_the_environment_of_a_function() -> None:
    def look(part: str, environment: Environment) -> str:
        """Look."""
        return part

    run = run_with([{"tool": "look", "args": {"part": "a", "environment": "b"}}, FINISH], look)
    assert run.steps[0].envelope["code"] == "invalid_arguments"
