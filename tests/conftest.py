"""What every test may use: the engine, and sandboxes that are gone when the test is."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from sandbox import DockerEnvironment

REQUIRED = "GAMEBOX_REQUIRE_ENGINE"
# Characters of a value in the name of a test.
MOST_NAME = 200
# Other work on the machine can make any example slow; speed is measured in benchmarks/.
settings.register_profile("gamebox", deadline=None)
settings.load_profile("gamebox")


def pytest_addoption(parser: pytest.Parser) -> None:
    what = "run all of tests/contract over a service, also what is about the guest alone"
    parser.addoption("--all-over-service", action="store_true", help=what)
    what = "run all of tests/contract in each image of tests/contract/images.py, and not only what depends most on the image"
    parser.addoption("--image-matrix", action="store_true", help=what)


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs (`nohup make test &`) with these ignored, and children inherit that: Ctrl-C in a test's
    # program would do nothing. A handler is not inherited, so whatever a test starts has the default action.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if "XDG_STATE_HOME" not in os.environ:  # workers inherit it; what tests record is nothing of the user's
        folder = os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="gamebox-tests-state-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    config.addinivalue_line("markers", "needs(*capabilities): only environments that have these take part")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long value by its length: pytest would name it by all of it, and put megabytes into variables, pipes and logs."""
    if isinstance(val, str | bytes) and len(val) > MOST_NAME:
        return f"{argname} of {len(val)}"
    return None


@functools.cache
def engine_problem() -> str | None:
    """Why no engine answers; None where one does."""
    from sandbox.docker.engine.client import connect
    from sandbox.errors import SandboxError

    try:
        connect().close()
    except SandboxError as error:
        return str(error)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a module that share a service or a sandbox go to one worker: each worker would start its own of them.

    xdist begins with the largest groups. An engine for the whole run makes no group: it starts within 4 s, and the tests on it are
    a quarter of all.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None and shares(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage, which is a seventh of the time: what is made then stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave the collected tests out of what the garbage collector searches: that took a twentieth of the tests' time."""
    gc.collect()
    gc.freeze()


def shares(item: pytest.Item) -> bool:
    """Return whether the test has a fixture of ours for all of its module. Those of pytest and of plugins do not count."""
    if not isinstance(item, pytest.Function):
        return False
    named = item._fixtureinfo.name2fixturedefs
    ours = [named[name][-1] for name in item.fixturenames if name in named and named[name][-1].baseid]
    return any(each.scope == "module" for each in ours)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked ``engine`` are skipped without one, or fail where GAMEBOX_REQUIRE_ENGINE is 1."""
    if item.get_closest_marker("engine") is None:
        return
    problem = engine_problem()
    if problem is None:
        return
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, but no engine answers: {problem}", pytrace=False)
    pytest.skip(f"no engine answers: {problem}")


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Runs suites without the other plugins that are installed here: importing those takes three quarters of each run."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:langsmith_plugin -p no:hypothesispytest -p no:anyio")
    return pytester


@pytest.fixture
def docker_env() -> Iterator[Callable[..., DockerEnvironment]]:
    """Makes started DockerEnvironments of the given options, and closes them all."""
    from sandbox import DockerEnvironment

    made: list[DockerEnvironment] = []

    def make(*args: Any, **options: Any) -> DockerEnvironment:
        made.append(DockerEnvironment(*args, **options))
        return made[-1].start()

    yield make
    for env in made:
        env.close(wait=True)


@pytest.fixture(scope="module")
def living() -> Iterator[Callable[..., DockerEnvironment]]:
    """Answers a sandbox of the module's own, for tests that only need one that works; another one when a test has lost it."""
    from sandbox import DockerEnvironment, Limits

    made: list[DockerEnvironment] = []

    def sandbox(profile: str = "default") -> DockerEnvironment:
        known = [env for env in made if env.profile.name == profile]
        if known and known[-1].run("true", session=None).ok:
            return known[-1]
        made.append(DockerEnvironment(profile=profile, limits=Limits(memory_bytes=1 << 30, pids=256)).start())
        return made[-1]

    yield sandbox
    for env in made:
        env.close(wait=True)


@pytest.fixture
def env(living: Callable[..., DockerEnvironment]) -> DockerEnvironment:
    """The module's sandbox, shown to work before each test."""
    return living()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """At the end no sandbox of this process is left on the engine; set up first, so this is checked last."""
    yield
    if "sandbox.docker.environment" not in sys.modules or engine_problem() is not None:
        return
    from sandbox.docker.engine.client import connect
    from sandbox.docker.engine.events import SANDBOX_LABEL
    from sandbox.docker.remover import remover

    client = connect()
    try:
        remover.wait(10)
        labels = [SANDBOX_LABEL, f"dev.gamebox.pid={os.getpid()}"]
        left = [found["Names"] for found in client.api.containers(all=True, filters={"label": labels})]
    finally:
        client.close()
    assert not left, f"sandboxes were left on the engine: {left}"
