"""Run every Python example of the README and of docs/ as it stands there, on the real engine: what a page shows is true."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.gamebox_service import shared_service
from tests.servers.packages import npm_package, python_index
from tests.servers.upstream import Upstream

from .model_server import ModelServer, call

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
TESTED_TOOL = Path(__file__).parent / "tested_tool" / "tool"
# Pages whose examples are tests, and how many tests pass.
AS_TESTS = {"docs/reference/testing.md": 4, "docs/how-to/test-with-pytest.md": 2}
# All recipes are one program, which starts one sandbox for those that use ``env``.
RECIPES = "docs/how-to"
# Their frameworks are not installed here: make foreign tries the adapters.
OF_FRAMEWORKS = ("docs/how-to/integrations/", "docs/e2b.md")


def examples(page: str) -> list[str]:
    """Return the examples of a page, or of all recipes."""
    if page == RECIPES:
        return [text for path in recipes() for text in (*examples(path), "env = spare\n")]  # a page may have closed its own
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def recipes() -> list[str]:
    """Return the pages of the recipes that are programs."""
    pages = (str(path.relative_to(ROOT)) for path in sorted((ROOT / RECIPES).glob("*.md")))
    return [page for page in pages if page not in AS_TESTS]


WITH_EXAMPLES = [
    page
    for page in ("README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))))
    if page not in AS_TESTS and not page.startswith(OF_FRAMEWORKS) and examples(page)
]
PAGES = [*(page for page in WITH_EXAMPLES if page not in recipes()), RECIPES]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the library that the examples speak of."""
    library = tmp_path / "mylib"
    library.mkdir()
    for name in ("a", "b"):
        (library / f"{name}.py").write_text("what = 'old'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """What the examples call provider/name."""
    with ModelServer([call("finish", {"summary": "mended"})] * 2) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        yield server


@pytest.fixture
def indexes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The indexes of pip and npm on this host, with the packages that examples install."""
    with Upstream() as upstream:
        pages, files = python_index(["rich", "markdown-it-py", "mdurl", "pygments"], upstream.url)
        left_pad = npm_package("left-pad", "1.3.0", {"index.js": "module.exports = 7"}, upstream.url)
        upstream.files = {**pages, **files, **left_pad}
        monkeypatch.setenv("PIP_INDEX_URL", f"{upstream.url}/simple/")
        monkeypatch.setenv("npm_config_registry", upstream.url)
        yield


@pytest.fixture
def service(page: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The address and the key of a service, where a page speaks of one."""
    if "RemoteEnvironment" not in "".join(examples(page)):
        return "", ""
    made = shared_service()
    monkeypatch.setenv("GAMEBOX_URL", made.url)
    monkeypatch.setenv("GAMEBOX_API_KEY", made.key)
    return made.url, made.key


SECRETS = 'import os as _os\n_os.environ["API_TOKEN"] = _os.environ["DEPLOY_KEY"] = "nobody\'s key"\n'
SANDBOX = """
import sandbox as _sandbox
env = spare = _sandbox.DockerEnvironment(limits=_sandbox.Limits(memory_bytes=512 << 20)).start()
"""
# Pages whose examples close sandboxes of their own called ``env``.
CLOSING = ("docs/reference/network.md", "docs/reference/services.md")
# What holds after the examples of a page: further lines of the program, and a part of what it printed.
HOLDS = {
    "README.md": ("", "True 0 hi\n\nFalse path_not_found List the workspace to see what is there."),
    "docs/tutorial.md": ("", "finished ['save', 'count_words', 'finish']\nAgentRun(finished, 1 step"),
    RECIPES: ("assert not spare.read('nothing')", "built\n"),
    "docs/reference/state.md": ("assert \"+what = 'new'\" in open('result.patch').read()", "a.py"),
    "docs/reference/commands.md": ("assert ran.running and asks(seen) and int(port)", "\nserved\n"),
    "docs/reference/agents/overview.md": ("assert run.status == 'finished', run", "mended"),
    "docs/reference/isolation.md": ("", ""),
    "docs/reference/services.md": ("assert 'API_TOKEN' in env.run('env').unwrap().output", "GET / HTTP/1.1"),
}
# What the program waits for before a line of a page: at one moment, such as the end of a wait, it may not be so yet.
ASKS = """
asks = lambda seen: seen.running and seen.waiting_for is not None and seen.waiting_for.kind == 'stdin'
import time
for _ in range(200):
    if asks(seen := env.logs(ran.id).unwrap()): break
    time.sleep(0.1)
"""
BEFORE = {"docs/reference/commands.md": ('env.send(ran.id, keys=["ctrl-d"])\n', ASKS)}
# What a recipe says that it prints.
PRINTED = (
    "pip exited with 0",
    "28 days\n",
    "timeout working",
    "used ***DEPLOY_KEY***\n",
    "network_denied A connection to other.test:443 was refused: no rule opens it.",
    "other.test 443 denied no rule opens it",
    "step 3\n0\n",
    "hello Grace\n",
    "from a task\n\n1 acquired\n",
    "True ",
)


def uses_a_sandbox_of_its_page(program: str) -> bool:
    """Return whether ``env`` is used before the examples make one: most pages do without, and a start takes its time."""
    used, made = (re.search(pattern, program, re.MULTILINE) for pattern in (r"\b(?:env|spare)\b", r"\bas env\b|^env = (?!spare)"))
    return used is not None and (made is None or "spare" in program or used.start() < made.start())


@pytest.mark.parametrize("page", PAGES)
def test_an_example_runs(page: str, here: Path, model: ModelServer, indexes: None, service: tuple[str, str]) -> None:
    """The examples of one page are one program, and ``env`` is a sandbox."""
    url, key = service
    after, printed = HOLDS.get(page, ("", ""))
    again = "\nenv = spare\n" if page in CLOSING else "\n"
    text = again.join(examples(page)).replace('"work"', f'"doc-{uuid.uuid4().hex[:8]}"')
    text = text.replace("http://127.0.0.1:8080", url).replace("e2b_...", key) if url else text
    if page in BEFORE:
        line, waits = BEFORE[page]
        assert text.count(line) == 1
        text = text.replace(line, waits + line)
    program = text.replace("provider/name", "openai/test") + f"\n{after}\n"
    if uses_a_sandbox_of_its_page(program):
        program = f"{SANDBOX}{program}spare.close()\n"
    done = subprocess.run([sys.executable, "-c", SECRETS + program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
    if page == RECIPES:
        assert not [each for each in PRINTED if each not in done.stdout], done.stdout


@pytest.mark.parametrize("page", AS_TESTS)
def test_the_examples_of_tests_are_a_suite_that_passes(page: str, here: Path) -> None:
    shutil.copytree(TESTED_TOOL, here / "tool")
    for number, program in enumerate(examples(page)):
        named = re.match(r"# (\w+\.py)", program)
        (here / (named[1] if named else f"test_example_{number}.py")).write_text(program)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(here)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=here)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{AS_TESTS[page]} passed" in done.stdout


def test_all_pages_with_examples_are_known() -> None:
    """A page that is written later takes part by itself; one that loses its examples is missed."""
    assert {*HOLDS} <= set(PAGES)
    assert len(recipes()) + 1 >= 12
