"""pytest plugin: the fixtures ``sandbox`` and ``sandbox_session``, the marker ``sandbox``, and post-mortems in reports of failures.

Every pytest of an environment with Gamebox installed loads this module. It imports nothing of Gamebox until a test asks for a
sandbox: in a project that has its own package ``sandbox``, that one is imported, and the header says why the fixtures are not
available. See docs/reference/testing.md.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from sandbox.docker.services.running_service import RunningService
    from sandbox.environment.sandboxed import SandboxedEnvironment
    from sandbox.pytest_plugin.inspection import Snapshot
    from sandbox.pytest_plugin.recorded import Recorded

__all__ = ["sandbox", "sandbox_options", "sandbox_services", "sandbox_session", "sandbox_shared_services"]

FIXTURES = ("sandbox", "sandbox_session")
SECTION = "sandbox post-mortem"
MARKER = (
    "sandbox(*, image, network, limits, pull, workspace, env, ca_bundle, profile, runtime, track_changes, services, cache, "
    "read_roots, local): what the test's own sandbox is made of"
)


@dataclass(frozen=True, slots=True)
class _Use:
    """A sandbox of a test, and its state when the test began.

    ``before`` are its files, ``earlier`` is the number of its operations, ``begun`` are the sizes of its shared services' logs.
    """

    env: Recorded
    before: Snapshot | None
    earlier: int
    begun: dict[str, int]


_USED = pytest.StashKey[dict[str, _Use]]()
_SERVICES = pytest.StashKey["dict[str, RunningService]"]()
_SHARED = pytest.StashKey["Recorded"]()
_PROBLEM = pytest.StashKey[str]()
_RUNNING = pytest.StashKey[pytest.Item]()


def _shadowed() -> str | None:
    """Return a sentence that says why Gamebox's package ``sandbox`` cannot be imported here, None if it can. Imports nothing."""
    try:
        spec = importlib.util.find_spec("sandbox")
    except ValueError:  # a module of that name is loaded and has no spec
        spec = None
    found = None if spec is None else spec.origin or "a folder without __init__.py"
    if found is not None and Path(found).resolve() == Path(__file__).resolve().parent / "sandbox" / "__init__.py":
        return None
    return f"the fixtures sandbox and sandbox_session are not available: 'sandbox' is not Gamebox's package here, but {found}."


def pytest_report_header() -> str | None:
    """Say in one line that the project has its own package ``sandbox``; its tests run as usual."""
    problem = _shadowed()
    return None if problem is None else f"gamebox: {problem}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and an ini option for each except ``--sandbox-artifacts`` and ``--sandbox-remote``."""
    group = parser.getgroup("sandbox", "sandboxes (gamebox)")
    for name, what in (
        ("image", "image of sandboxes whose tests name none (default: gamebox/base)"),
        ("network", "network of sandboxes whose tests name none: none, open or bridge (default: none)"),
        ("profile", "profile of sandboxes whose tests name none"),
        (
            "cache",
            "folder of a package cache, from which pip, uv and npm install with no network, for tests that name none",
        ),
    ):
        group.addoption(f"--sandbox-{name}", default=None, metavar=name.upper(), help=what)
        parser.addini(f"sandbox_{name}", what)
    local = "run sandboxes on this machine itself, WITHOUT ISOLATION; tests that ask for what only a container has are skipped"
    group.addoption("--sandbox-local", action="store_true", default=False, help=local)
    parser.addini("sandbox_local", local, type="bool", default=False)
    remote = "use sandboxes of the service at GAMEBOX_URL, as all runs do while that variable is set"
    group.addoption("--sandbox-remote", action="store_true", default=False, help=remote)
    group.addoption(
        "--sandbox-artifacts",
        default=None,
        metavar="DIR",
        help="write the post-mortem of each failed test as a JSON file into DIR",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and refuse invalid options of the command line."""
    config.addinivalue_line("markers", MARKER)
    names = ("image", "network", "profile", "cache", "local")
    if given := [name for name in names if config.getoption(f"sandbox_{name}") not in (None, False)]:
        if problem := _shadowed():
            raise pytest.UsageError(f"--sandbox-{given[0]}: {problem}")
        from sandbox.pytest_plugin.options import OptionsError, of_command_line

        try:
            of_command_line(config)
        except OptionsError as error:
            raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse invalid markers: before the first test runs, or test by test in a worker of xdist, which cannot report them."""
    problems = []
    for item in items:
        if problem := _problem_of_marker(item):
            item.stash[_PROBLEM] = problem
            problems.append(f"{item.nodeid}: {problem}")
    if problems and not hasattr(config, "workerinput"):
        more = [f"... and {len(problems) - 10} more"] if len(problems) > 10 else []
        raise pytest.UsageError(*problems[:10], *more)


def _problem_of_marker(item: pytest.Item) -> str | None:
    marks = list(item.iter_markers("sandbox"))
    if not marks or not (used := [name for name in FIXTURES if _is_ours(item, name)]):
        return None  # a project may use a marker of that name for something else
    if problem := _shadowed():
        return problem
    from sandbox.pytest_plugin.options import OptionsError, of_marks

    try:
        of_marks(marks)
    except OptionsError as error:
        return str(error)
    if "sandbox" in used:
        return None
    return (
        "@pytest.mark.sandbox does not reach sandbox_session, which all tests share. Use the fixture sandbox, or give the options "
        "to the whole project: a fixture sandbox_options in conftest.py."
    )


def _is_ours(item: pytest.Item, name: str) -> bool:
    """Return whether the test uses our fixture of that name, directly or through one that extends it."""
    info = getattr(item, "_fixtureinfo", None)
    for definition in reversed(info.name2fixturedefs.get(name, ()) if info is not None else ()):
        if definition.func.__module__ == __name__:
            return True
        if name not in definition.argnames:
            return False
    return False


@pytest.fixture(scope="session")
def sandbox_options() -> dict[str, Any]:
    """Return options for every sandbox of the project. Override it in conftest.py, with the marker's arguments as a dict."""
    return {}


@pytest.fixture(scope="session")
def sandbox_shared_services() -> dict[str, Any]:
    """Return side services that all sandboxes of the project share. Override it in conftest.py, with SideServices by name."""
    return {}


@pytest.fixture(scope="session")
def sandbox_services(
    request: pytest.FixtureRequest, sandbox_shared_services: dict[str, Any]
) -> Iterator[dict[str, RunningService]]:
    """Start the shared side services (with xdist, once for each worker); yields them by name."""
    if not sandbox_shared_services:
        yield {}
        return
    _need_ours()
    from sandbox.pytest_plugin import options as opt

    config = request.config
    try:
        group = opt.beside(sandbox_shared_services, config).__enter__()
    except opt.FAULTS as error:
        problem = f"The shared side services could not be started: {error}"
    else:
        try:
            config.stash[_SERVICES] = dict(group.running)
            yield config.stash[_SERVICES]
        finally:
            group.close()
        return
    pytest.fail(problem, pytrace=False)


@pytest.fixture
def sandbox(
    request: pytest.FixtureRequest,
    sandbox_options: dict[str, Any],
    sandbox_services: dict[str, RunningService],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SandboxedEnvironment]:
    """Start a sandbox for the test, and close it afterwards. The marker ``sandbox`` has its options."""
    node: pytest.Item = request.node
    marks = list(node.iter_markers("sandbox"))
    env = _started(node.config, marks, node.path.parent, sandbox_options, sandbox_services, tmp_path_factory)
    try:
        _note(node, "sandbox", env, 0)
        yield cast("SandboxedEnvironment", env)  # one of a service has the same methods
    finally:
        env.close()


@pytest.fixture(scope="session")
def sandbox_session(
    request: pytest.FixtureRequest,
    sandbox_options: dict[str, Any],
    sandbox_services: dict[str, RunningService],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SandboxedEnvironment]:
    """Start a sandbox that all tests share (with xdist, all tests of a worker), with everything they leave in it."""
    config = request.config
    env = _started(config, [], config.rootpath, sandbox_options, sandbox_services, tmp_path_factory)
    config.stash[_SHARED] = env
    try:
        if config.stash.get(_RUNNING, None) is not None:
            _note(config.stash[_RUNNING], "sandbox_session", env, 0)
        yield cast("SandboxedEnvironment", env)
    finally:
        del config.stash[_SHARED]
        env.close()


def _started(
    config: pytest.Config,
    marks: list[pytest.Mark],
    base: Path,
    given: Any,
    shared: dict[str, RunningService],
    copies: pytest.TempPathFactory,
) -> Recorded:
    _need_ours()
    from sandbox.errors import SandboxError
    from sandbox.pytest_plugin import options as opt

    try:
        marked = opt.anchored(opt.of_marks(marks), base)
        project = opt.anchored(opt.checked(given, "sandbox_options"), config.rootpath)
        options = opt.put_together(marked, opt.of_command_line(config), project, opt.of_ini(config))
        reason = opt.reason_to_skip(marked, options)
        if reason is None:
            asked = opt.with_services(options, shared)
            return opt.made(asked, copies, remote=config.getoption("sandbox_remote")).start()
    except (opt.OptionsError, SandboxError) as error:
        problem = f"The sandbox could not be started: {error}"
    else:
        pytest.skip(f"no container is used (--sandbox-local or sandbox_local), and {reason}")
    pytest.fail(problem, pytrace=False)  # outside the try, so that no traceback is shown


def _need_ours() -> None:
    """Fail the test in one sentence if the package ``sandbox`` is not Gamebox's."""
    if problem := _shadowed():
        pytest.fail(problem, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Record, before the test's fixtures, the state of the shared sandbox that this test did not cause."""
    if _PROBLEM in item.stash:
        pytest.fail(item.stash[_PROBLEM], pytrace=False)
    item.config.stash[_RUNNING] = item
    env = item.config.stash.get(_SHARED, None)
    if env is not None:
        _note(item, "sandbox_session", env, env.record.count, look=_asks_for(item, "sandbox_session"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the post-mortem of each sandbox of a failed test."""
    report = yield
    if report.failed:
        for fixture, use in item.stash.get(_USED, {}).items():
            if _asks_for(item, fixture) or use.env.record.count > use.earlier:
                report.sections.append((f"{SECTION} ({fixture})", _post_mortem(item, str(report.when), fixture, use)))
    return report


def _post_mortem(item: pytest.Item, phase: str, fixture: str, use: _Use) -> str:
    from sandbox.pytest_plugin.postmortem import collect, save

    found = collect(item.nodeid, phase, fixture, use.env, use.before, use.earlier, use.begun)
    folder = item.config.getoption("sandbox_artifacts")
    if not folder:
        return found.to_text()
    try:
        return f"{found.to_text()}\nsaved as {save(found, item.config.invocation_params.dir / folder)}"
    except OSError as error:
        return f"{found.to_text()}\nnot saved in {folder}: {error}"


def _asks_for(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())


def _note(item: pytest.Item, fixture: str, env: Recorded, earlier: int, look: bool = True) -> None:
    from sandbox.pytest_plugin.inspection import snapshot
    from sandbox.pytest_plugin.services import offsets

    begun = offsets(env, list(item.config.stash.get(_SERVICES, {}).values()))
    item.stash.setdefault(_USED, {})[fixture] = _Use(env, snapshot(env) if look else None, earlier, begun)
