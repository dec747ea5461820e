"""Pages in the browser of a sandbox, beside headless Chromium started by hand in the same container; without it, beside curl."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.machine import open_sandbox
from benchmarks.measuring import Goal, Options, Row, milliseconds, take_turns
from sandbox import DockerEnvironment
from sandbox.docker.engine.client import connect
from sandbox.docker.images.images import ensure_image

IMAGE = "gamebox/browser"
URL = "http://127.0.0.1:8000"
SMALL = "<title>Small</title><h1>Small</h1><p>text</p><a href=/>link</a>"
ROW = "<tr><td>row</td><td><a href=/x>link</a></td><td><button>press</button></td></tr>"  # six nodes
ROWS = 833
BY_HAND = (
    "/usr/lib/chromium/chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir=$(mktemp -d) "
    f"--dump-dom {URL}/small.html >/dev/null 2>&1"
)


def browser(options: Options) -> Iterator[Row]:
    """Measure a first page from no browser at all, the next pages, and the outline of a page of 5,000 elements."""
    ensure_image(connect(), IMAGE, report=print)
    with open_sandbox(IMAGE) as env:
        env.write("small.html", SMALL).unwrap()
        env.write("large.html", f"<title>Large</title><table>{ROW * ROWS}</table>").unwrap()
        env.run("python3 -m http.server 8000 --bind 127.0.0.1", background=True).unwrap()
        env.wait_for(port=8000).unwrap()

        def light() -> float:
            return milliseconds(lambda: env.browse(f"{URL}/small.html", browser=False).unwrap())

        def fetched() -> float:
            return milliseconds(lambda: env.run(f"curl -s {URL}/small.html", session=None).unwrap())

        calls = {
            "by hand": lambda: milliseconds(lambda: env.run(BY_HAND, session=None).unwrap()),
            "first page, from no browser": lambda: _first_page(env),
            "next page": lambda: milliseconds(lambda: env.browse(f"{URL}/small.html", browser=True).unwrap()),
            "outline of 5,000 elements": lambda: _outline(env),
            "curl": fetched,
            "page without the browser": light,
            "first page without the browser": lambda: _without_reader(env, light),
        }
        turns = take_turns(calls, options.rounds(20))
        yield turns.row("first page, from no browser", "by hand", Goal("p50", 1500.0, otherwise=Goal("ratio", 1.5)))
        yield turns.row("next page", "by hand", Goal("p50", 150.0, otherwise=Goal("ratio", 0.25)))
        yield turns.row("outline of 5,000 elements", "by hand", Goal("p50", 300.0, otherwise=Goal("ratio", 0.5)))
        yield turns.row("page without the browser", "curl", Goal("above baseline", 50.0))
        yield turns.row("first page without the browser", "curl", Goal("above baseline", 50.0))


def _first_page(env: DockerEnvironment) -> float:
    """Return how long a page takes after the browser was ended with all its processes."""
    container = connect().containers.get(env.container_id)
    container.exec_run(["pkill", "-9", "-u", "61187"], user="61187")
    env.browse_interact({"action": "evaluate", "value": "1"})  # notices the end, and starts another one
    container.exec_run(["pkill", "-9", "-u", "61187"], user="61187")
    env.wait_for(file="/workspace/small.html")
    while env.run("pgrep -u 61187", session=None).unwrap().exit_code == 0:
        pass
    return milliseconds(lambda: env.browse(f"{URL}/small.html", browser=True).unwrap())


def _without_reader(env: DockerEnvironment, page: Callable[[], float]) -> float:
    """Return how long a page takes after the process was ended that had stayed to read it."""
    env.run("pkill -9 -f pages[.]page", session=None).unwrap()
    return page()


def _outline(env: DockerEnvironment) -> float:
    """Return how long a step takes that only looks at a large page, which is open already: twice the outline, and a step."""
    env.browse(f"{URL}/large.html", browser=True).unwrap()
    return milliseconds(lambda: env.browse_interact({"action": "goto", "value": f"{URL}/large.html#x"}, max_chars=200_000).unwrap())
