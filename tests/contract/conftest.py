"""One environment of each kind for the whole run; a folder of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from sandbox.environment.sandboxed import SandboxedEnvironment
from sandbox.pipe import awaiting, transport

from .backends import BACKENDS, Backend

_numbers = itertools.count(1)


# What these are about happens in the guest alone. Over a service, the first test of each takes part: with the others, the suite
# would take twice the time (110 s of 210) and find nothing more. ``--all-over-service`` runs all of them.
OF_THE_GUEST = (
    "test_background", "test_browse", "test_clues", "test_interactive", "test_processes", "test_servers", "test_shell",
    "test_stalls", "test_usage", "test_waiting",
)  # fmt: skip
# And these of other modules, which take longest.
SLOW_OF_THE_GUEST = ("test_pipes_made_larger_are_taken_whole_at_the_end",)
# What depends most on the image, and runs in those of ``images.py``; of other modules the first test does. ``--image-matrix`` runs
# all of them there (five minutes instead of one).
OF_THE_IMAGE = (
    "test_run", "test_the_shell_counts_the_lines_of_the_command_from_one", "test_a_syntax_error_of_a_command_has_a_code",
    "test_a_search_says_that_a_folder_could_not_be_read",
)  # fmt: skip
_first_of: dict[tuple[str, str], str] = {}


def _takes_part(metafunc: pytest.Metafunc, backend: Backend) -> bool:
    """Return whether a test that can run in an environment is to run there."""
    module, name = str(metafunc.module.__name__).rpartition(".")[2], str(metafunc.function.__name__)
    if backend.name == "remote" and metafunc.config.getoption("--all-over-service") is not True:
        if module not in OF_THE_GUEST:
            return name not in SLOW_OF_THE_GUEST
    elif not backend.extra_image or {module, name} & set(OF_THE_IMAGE) or metafunc.config.getoption("--image-matrix") is True:
        return True
    return _first_of.setdefault((backend.name, module), name) == name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests run on every environment that has what they need."""
    if "env" not in metafunc.fixturenames:
        return
    needed = {name for mark in metafunc.definition.iter_markers("needs") for name in mark.args}
    params = []
    for backend in BACKENDS:
        if needed <= backend.capabilities and _takes_part(metafunc, backend):
            marks = [pytest.mark.xdist_group(f"contract-{backend.name}")]
            if backend.needs_engine:
                marks.append(pytest.mark.engine)
            params.append(pytest.param(backend, marks=marks, id=backend.name))
    assert params, f"no environment has {needed}"
    metafunc.parametrize("env", params, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the parameters of a test that need what its environment does not have."""
    items[:] = [item for item in items if _has_what_it_needs(item)]


def _has_what_it_needs(item: pytest.Item) -> bool:
    backend = item.callspec.params.get("env") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    needed = {name for mark in item.iter_markers("needs") for name in mark.args}
    return not isinstance(backend, Backend) or needed <= backend.capabilities


@pytest.fixture(scope="session")
def env(request: pytest.FixtureRequest) -> Iterator[SandboxedEnvironment]:
    """A started environment that all tests of its kind share."""
    backend: Backend = request.param
    with backend.make() as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left_over(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the commands and sessions that a test leaves behind: the next one on the same environment counts its own."""
    if "env" not in request.fixturenames:
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        # A stall of some seconds would end the shared environment. What is promised is held by tests/integration/test_timeouts.py.
        for module in (awaiting, transport):
            patched.setattr(module, "GRACE_SECONDS", 20.0)
        yield
        _tidy_up(request.getfixturevalue("env"))


def _tidy_up(shared: SandboxedEnvironment) -> None:
    listed = shared.processes()
    for command in listed.result.commands if listed.ok else ():
        if command.running:
            shared.kill(command.id)
    sessions = shared.sessions()
    for session in sessions.result.sessions if sessions.ok else ():
        shared.end_session(session.name)


@pytest.fixture
def folder(env: SandboxedEnvironment) -> str:
    """A new folder in the workspace."""
    name = f"t{next(_numbers)}"
    env.make_dir(name).unwrap()
    return name
