"""A pause while a page is read, on the machine's engine: the images of our own engines have no server."""

from __future__ import annotations

import threading

import pytest

from sandbox import DockerEnvironment, Limits
from sandbox.errors import ErrorCode

from .observing import within
from .test_pausing import resumed_after

pytestmark = pytest.mark.engine
SMALL = Limits(memory_bytes=256 << 20)


def test_a_pause_does_not_count_for_a_page() -> None:
    program = """
import http.server, time
class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.5)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"first ")
        for _ in range(5):
            time.sleep(0.2)
        self.wfile.write(b"last")
http.server.HTTPServer(("127.0.0.1", 8017), Slow).serve_forever()
"""
    with DockerEnvironment(limits=SMALL) as env:
        env.run(argv=["python3", "-c", program], background=True).unwrap()
        env.wait_for(port=8017).unwrap()
        for begun in (0.2, 1.0):  # nothing came yet; in the middle
            pausing = threading.Timer(begun, lambda: resumed_after(env, 5.0))
            pausing.start()
            answer = env.browse("http://127.0.0.1:8017/", timeout_seconds=4.5)  # enough on a busy machine, less than the pause
            assert answer.unwrap().text == "first last"
            assert answer.duration_ms > 5000
        late, took = within(6.0, lambda: env.browse("http://127.0.0.1:8017/", timeout_seconds=1.0))
        assert not late.ok
        assert late.code is ErrorCode.timeout
        assert took >= 1.0
