"""What a step does to the configuration of an image, and what makes its layer another one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from sandbox.docker.builds.configuration import Configuration, expand, expand_copy, final_key, layer_key
from sandbox.docker.builds.steps import Copy, Env, Plan, Run, Step, User, Workdir
from sandbox.errors import ErrorCode, SandboxError

ARCHIVE = "a" * 64
PLAN = Plan(base="base")
START = Configuration({"PATH": "/bin"}, "/srv", "root")


def after(*steps: Step) -> Configuration:
    found = START
    for step in steps:
        found = found.after(step)
    return found


MAKE = Run("make")


def key(step: Run | Copy = MAKE, **changed: Any) -> str:
    parts: dict[str, Any] = {"owner": "o", "parent_id": "sha256:1", "plan": PLAN, "configuration": START, "step": step}
    return layer_key(**({"digest": ""} | parts | changed))


def test_the_configuration_of_an_image_is_read() -> None:
    config = {"Env": ["A=1=2", "broken"], "WorkingDir": "", "User": ""}
    assert Configuration.of_image(config) == Configuration({"A": "1=2"}, "/", "root")
    assert Configuration.of_image({}) == Configuration({}, "/", "root")


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$A-${A}-$B", "1-1-"),
        ("${B:-x}${E:-y}${E-z}${A:+set}${E:+set}${E+set}", "xysetset"),
        (r"\$A \\ \n", r"$A \ \n"),
        ("$1 $ ${} ${A", "$1 $ ${} ${A"),
    ],
)
def test_variables_are_replaced(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "E": ""}) == expanded


def test_an_expansion_has_an_end() -> None:
    with pytest.raises(SandboxError) as caught:
        expand("$A" * 100, {"A": "x" * 1000})
    assert caught.value.code is ErrorCode.invalid_arguments


class Unread(dict[str, str]):
    """Variables of which only so many may be looked at."""

    most = 100

    def get(self, name: str, default: Any = None) -> Any:
        self.most -= 1
        assert self.most, "the text grew far over its limit before it was refused"
        return super().get(name, default)


def test_an_expansion_ends_before_it_is_large() -> None:
    with pytest.raises(SandboxError):
        expand("$A" * 32_000, Unread(A="x" * (1 << 10)))


MANY = [Env(tuple((f"v{step}_{number}", "$X") for number in range(20))) for step in range(10)]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([Env((("X", "x" * 60_000),)), *MANY], id="chars"),
        pytest.param([Env(tuple((f"v{number}", "") for number in range(1001)))], id="names"),
        pytest.param([Env((("X", "x" * 5000),)), Workdir("$X")], id="path"),
        pytest.param([Workdir("x" * 3000), Workdir("x" * 3000)], id="path_of_two"),
        pytest.param([Env((("X", "x" * 5000),)), User("$X")], id="user"),
    ],
)
def test_a_configuration_has_an_end(steps: list[Step]) -> None:
    with pytest.raises(SandboxError) as caught:
        after(*steps)
    assert caught.value.code is ErrorCode.invalid_arguments


def test_a_variable_that_is_set_again_takes_its_room_once() -> None:
    assert len(after(*[Env((("X", "x" * 60_000),))] * 10).env) == 2


def test_variables_of_one_env_see_those_before_it() -> None:
    assert after(Env((("A", "1"), ("B", "$A"))), Env((("C", "$A"),))).env == {"PATH": "/bin", "A": "1", "B": "", "C": "1"}


def test_working_directories_are_relative_and_made_once() -> None:
    found = after(Workdir("a"), Workdir("../b/"), User("u"), Workdir("/c"))
    assert found.workdir == "/c"
    assert found.folders == (("/srv/a", "root"), ("/srv/b", "root"), ("/c", "u"))
    assert found.after(Run("true")).folders == ()
    assert after(Workdir("/")).folders == ()
    assert after(Workdir("../../../..")).workdir == "/"


@pytest.mark.parametrize(
    ("path", "absolute"), [("x", "/srv/x"), ("x/", "/srv/x/"), (".", "/srv/"), ("/", "/"), ("//x", "/x"), ("../..", "/")]
)
def test_destinations_are_made_absolute(path: str, absolute: str) -> None:
    assert START.absolute(path) == absolute


def test_a_copy_is_expanded() -> None:
    step = expand_copy(Copy(ARCHIVE, "$A/x", "$A/", "$A"), Configuration({"A": "v"}))
    assert (step.source, step.destination, step.owner) == ("v/x", "v/", "v")


CHANGES: dict[str, Callable[[], str]] = {
    "owner": lambda: key(owner="p"),
    "parent": lambda: key(parent_id="sha256:2"),
    "command": lambda: key(Run("make all")),
    "user_of_the_step": lambda: key(Run("make", user="u")),
    "variable_of_the_step": lambda: key(Run("make", env=(("A", "1"),))),
    "variable": lambda: key(configuration=after(Env((("A", "1"),)))),
    "folder": lambda: key(configuration=after(Workdir("x"))),
    "user": lambda: key(configuration=after(User("u"))),
    "shell": lambda: key(plan=dataclasses.replace(PLAN, shell=("/bin/bash", "-c"))),
    "kind": lambda: key(Copy(ARCHIVE, "a", "b")),
    "files": lambda: key(Copy(ARCHIVE, "a", "b"), digest="1"),
    "mode": lambda: key(Copy(ARCHIVE, "a", "b", mode=0o700)),
}


def test_everything_that_goes_into_a_layer_changes_its_key() -> None:
    keys = {name: change() for name, change in CHANGES.items()}
    assert len({key(), *keys.values()}) == 1 + len(keys)


def test_what_goes_into_no_layer_changes_no_key() -> None:
    same = [key(Run("make", force=True)), key(Run("make", timeout_seconds=5)), key(plan=Plan(base="x", labels=(("a", "b"),)))]
    assert set(same) == {key()}
    # A client's own name of an archive says nothing of its bytes.
    assert key(Copy("b" * 64, "a", "b")) == key(Copy(ARCHIVE, "a", "b"))


def test_the_finished_image_depends_on_what_it_is_configured_with() -> None:
    plans = [PLAN, Plan(base="base", start_command="x"), Plan(base="base", labels=(("a", "b"),)), Plan(base="base", command=())]
    keys = {final_key("o", "sha256:1", START, plan) for plan in plans} | {final_key("p", "sha256:1", START, PLAN)}
    assert len(keys) == len(plans) + 1


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Run(""), id="no_command"),
        pytest.param(lambda: Run("x", argv=("y",)), id="two_commands"),
        pytest.param(lambda: Run("a\0b"), id="nul"),
        pytest.param(lambda: Run("\udc80"), id="surrogate"),
        pytest.param(lambda: Run("x" * 100_000), id="long"),
        pytest.param(lambda: Run("x", timeout_seconds=0), id="no_time"),
        pytest.param(lambda: Copy("../x", "a", "b"), id="archive"),
        pytest.param(lambda: Copy(ARCHIVE, "a", ""), id="no_destination"),
        pytest.param(lambda: Copy(ARCHIVE, "a", "b", mode=0o100000), id="mode"),
        pytest.param(lambda: Env((("A=B", "1"),)), id="name_of_a_variable"),
        pytest.param(lambda: User(""), id="no_user"),
        pytest.param(lambda: Workdir(""), id="no_folder"),
        pytest.param(lambda: Plan(base=" "), id="no_base"),
        pytest.param(lambda: Plan(base="x", labels=(("dev.gamebox.build.owner", "y"),)), id="label_of_gamebox"),
        pytest.param(lambda: Plan(base="x", ports=("80; x",)), id="port"),
        pytest.param(lambda: Plan(base="x", shell=()), id="no_shell"),
    ],
)
def test_a_step_that_cannot_be_carried_out_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(SandboxError) as caught:
        make()
    assert caught.value.code is ErrorCode.invalid_arguments
