"""A pause while a page is read, on the machine's engine: the images of our own engines have no server."""

from __future__ import annotations

import threading

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.errors import ErrorCode

from .observing import eventually, within
from .test_pausing import resumed_after

pytestmark = pytest.mark.engine
SMALL = Limits(memory_bytes=256 << 20)


def test_a_pause_does_not_count_for_a_page() -> None:
    program = """
import http.server, os, pathlib, time
class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/before":
            wait()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"first ")
        if self.path != "/before":
            wait()
        self.wfile.write(b"last")
def wait():
    pathlib.Path("asked").touch()
    while not os.path.exists("go"):
        time.sleep(0.02)
http.server.HTTPServer(("127.0.0.1", 8017), Slow).serve_forever()
"""

    def pause() -> None:
        eventually(lambda: env.stat("asked").ok)
        resumed_after(env, 5.0).join()
        env.write("go", "").unwrap()

    with DockerEnvironment(limits=SMALL) as env:
        env.run(argv=["python3", "-c", program], background=True).unwrap()
        env.wait_for(port=8017).unwrap()
        for place in ("before", "middle"):  # nothing came yet; in the middle
            pausing = threading.Thread(target=pause)
            pausing.start()
            # Enough on a busy machine, and less than the pause.
            answer = env.browse(f"http://127.0.0.1:8017/{place}", timeout_seconds=4.5)
            pausing.join()
            assert answer.unwrap().text == "first last"
            assert answer.duration_ms > 5000
            env.run("rm asked go").unwrap()
        late, took = within(6.0, lambda: env.browse("http://127.0.0.1:8017/", timeout_seconds=1.0))
        assert not late.ok
        assert late.code is ErrorCode.timeout
        assert took >= 1.0
