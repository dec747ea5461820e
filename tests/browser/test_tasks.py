"""Forty small tasks, each done by an agent that sees the outline of the page and nothing else."""

from __future__ import annotations

import json

import pytest

from sandbox import DockerEnvironment

from .conftest import serve
from .solver import Solver
from .tasks import TASKS, Task

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("browser")]
SERVER = """
import http.server, json
PAGES = json.load(open("tasks.json"))
class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = PAGES.get(self.path[1:], "").encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def site(env: DockerEnvironment) -> str:
    env.write("tasks.json", json.dumps({task.name: task.page for task in TASKS})).unwrap()
    return serve(env, "tasks.py", SERVER)


def test_there_are_forty() -> None:
    assert len({task.name for task in TASKS}) == 40


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_is_solved_by_its_outline(env: DockerEnvironment, site: str, task: Task) -> None:
    page = env.browse(f"{site}/{task.name}", timeout_seconds=60).unwrap()
    assert (page.browser, page.title) == (True, task.name), (
        "pages of the sandbox's own servers with scripts are opened in the browser"
    )
    assert Solver(env, page.outline).solve(task.goal) == "SOLVED"
