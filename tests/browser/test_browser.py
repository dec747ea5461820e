"""The browser of a sandbox: what its pages tell, what it may reach, and how it ends."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from sandbox import DockerEnvironment, LocalEnvironment, Network
from sandbox.docker.engine.client import connect
from sandbox.envelope import Failure
from sandbox.guest.pages.driver.session import PICTURE_CHUNK
from sandbox.readers import hint_for

from .conftest import serve

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("browser")]
BROWSER = "61187"
PNG = b"\x89PNG\r\n\x1a\n"
SITE = """
import http.server
PAGE = b'''<!doctype html><title>Shop</title><h1>Shop</h1><p>We sell <b>nice</b> things.</p><a href="/next">Next</a>
<form><label>Name <input name=n></label>
<label>File <input type=file id=f onchange="f.files[0].text().then(t=>out.textContent=t)"></label></form>
<p id=out></p><a href="/next" target=_blank>Elsewhere</a><div style="height:3000px"></div><button id=late hidden>Late</button>
<script src="/missing"></script>
<script>console.warn("careful", 1); setTimeout(() => late.hidden = false, 300); null.x</script>'''
PDF = b'''%PDF-1.4
1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj
2 0 obj <</Type /Pages /Kids [3 0 R] /Count 1>> endobj
3 0 obj <</Type /Page /Parent 2 0 R /MediaBox [0 0 300 100] /Contents 4 0 R
  /Resources <</Font <</F 5 0 R>>>>>> endobj
4 0 obj <</Length 44>> stream
BT /F 12 Tf 20 50 Td (A paper on boxes) Tj ET
endstream endobj
5 0 obj <</Type /Font /Subtype /Type1 /BaseFont /Helvetica>> endobj
trailer <</Root 1 0 R>>
'''
KINDS = {"/text": "text/plain", "/paper.pdf": "application/pdf"}
class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        pages = {"/": PAGE, "/next": b"<title>Second</title><h1>Second page</h1>", "/text": b"plain", "/paper.pdf": PDF}
        found = pages.get(self.path)
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", KINDS.get(self.path, "text/html"))
        self.end_headers()
        self.wfile.write(found or b"nothing")
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def shop(env: DockerEnvironment) -> str:
    return serve(env, "shop.py", SITE)


@pytest.fixture
def page(env: DockerEnvironment, shop: str) -> Any:
    return env.browse(f"{shop}/", timeout_seconds=60).unwrap()


def reference(outline: str, start: str) -> str:
    return (
        next(line for line in outline.split("\n") if line.strip().startswith(f"- {start}"))
        .partition("[ref=")[2]
        .partition("]")[0]
    )


def test_what_a_page_tells(page: Any, shop: str) -> None:
    assert (page.browser, page.status, page.title, page.final_url) == (True, 200, "Shop", f"{shop}/")
    assert "We sell **nice** things." in page.text
    assert ("Next", f"{shop}/next") in [(link.text, link.url) for link in page.links]
    levels = {each.level: each for each in page.console}
    assert levels["warning"].text == "careful 1"
    assert levels["error"].text.startswith("TypeError: Cannot read properties of null")
    assert levels["error"].place.startswith(f"{shop}/:")
    assert [(each.method, each.url, each.problem) for each in page.failed_requests] == [
        ("GET", f"{shop}/missing", "status 404")
    ]
    shown = page.to_text()
    for words in ("[console error: TypeError", "[request failed: GET", '- textbox "Name" [ref='):
        assert words in shown


def test_what_is_opened_without_the_browser(env: DockerEnvironment, shop: str) -> None:
    assert not env.browse(f"{shop}/", browser=False).unwrap().browser
    assert not env.browse(f"{shop}/", raw=True).unwrap().browser
    assert not env.browse(f"{shop}/next").unwrap().browser, "it has no scripts"
    assert env.browse(f"{shop}/next", browser=True).unwrap().browser
    assert not env.browse(f"{shop}/", raw=True, browser=True).ok


@pytest.mark.parametrize("browser", [None, True])
def test_a_pdf_is_read_as_text(env: DockerEnvironment, shop: str, browser: bool | None) -> None:
    found = env.browse(f"{shop}/paper.pdf", browser=browser).unwrap()
    assert (found.browser, found.content_type) == (False, "application/pdf")
    assert "A paper on boxes" in found.text


def test_the_rest_of_a_page_is_read_where_it_is(env: DockerEnvironment, shop: str) -> None:
    first = env.browse(f"{shop}/", max_chars=10).unwrap()
    assert (len(first.text), first.truncated) == (10, True)
    rest = env.browse(f"{shop}/", offset=10, browser=True).unwrap()
    assert rest.text.startswith(("We", "\n", "e", " "))
    assert not rest.failed_requests, "it was opened once more"


def test_steps(env: DockerEnvironment, page: Any, shop: str) -> None:
    name = reference(page.outline, 'textbox "Name"')
    env.write("gift.txt", "a present").unwrap()
    done = env.browse_interact(
        [
            {"action": "fill", "target": name, "value": "Ann"},
            {"action": "type", "target": name, "value": " Lee"},
            {"action": "upload", "target": "#f", "value": "gift.txt"},
            {"action": "wait", "target": "#late"},
            {"action": "click", "target": "#late"},
            {"action": "evaluate", "value": "({name: document.querySelector('input').value})"},
            {"action": "wait", "value": "a present"},
        ]
    ).unwrap()
    assert '+ textbox "Name" [focused] [ref=' in "\n".join(done.steps[0].changes)
    assert json.loads(done.steps[5].value or "") == {"name": "Ann Lee"}
    assert "a present" in done.outline
    tabs = env.browse_interact({"action": "click", "target": reference(done.outline, 'link "Elsewhere"')}).unwrap()
    assert [tab.current for tab in tabs.tabs] == [False, True]
    assert tabs.title == "Second"
    back = env.browse_interact(
        [{"action": "close_tab"}, {"action": "click", "target": "a"}, {"action": "back"}]
    ).unwrap()
    assert (len(back.tabs), back.title) == (1, "Shop")


@pytest.mark.parametrize("milliseconds", [0, 10, 30, 60, 200])
def test_a_window_that_closes_itself_leads_back(env: DockerEnvironment, page: Any, milliseconds: int) -> None:
    """The browser was said to have failed, or the page not to answer in time."""

    def window(milliseconds: int) -> list[dict[str, str]]:
        return [
            {"action": "evaluate", "value": "open('/next'); 1"},
            {"action": "wait", "value": "Second page"},
            {"action": "evaluate", "value": f"setTimeout(() => close(), {milliseconds}); 1"},
        ]

    back = env.browse_interact([*window(milliseconds), {"action": "wait", "value": "We sell"}]).unwrap()
    assert (back.title, len(back.tabs)) == ("Shop", 1)
    if milliseconds == 200:
        for enough in (1000, 2500):  # for the next step to begin: on a busy machine the tab may be closed before it
            lost = env.browse_interact([*window(enough), {"action": "click", "target": "#none"}], timeout_seconds=30)
            if lost.ok or lost.code != "element_not_found":  # as it is in the first page
                break
        assert isinstance(lost, Failure)
        assert lost.code == "element_not_usable"
        assert "closed its tab" in lost.to_text()
        assert "We sell" in lost.to_text()


# What a server without rules for caches says of its files, one of them changed years ago: a browser may keep that one for months.
CACHED = """
import http.server, os
os.chdir('cached')
class Site(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_a_page_is_shown_as_it_is_now(env: DockerEnvironment) -> None:
    """A file that was changed within a second, or was old before, was shown as it was: the browser had kept it."""
    for name, content in (("index.html", "<script src=label.js></script><h1>First</h1>"), ("label.js", "document.title='old'")):
        env.write(f"cached/{name}", content).unwrap()
    old = "touch -d @1000000000 cached/label.js && touch -d @1700000000 cached/index.html"
    env.run(old).unwrap()
    address = serve(env, "cached/serve.py", CACHED)
    assert env.browse(address, browser=True).unwrap().title == "old"
    env.write("cached/label.js", "document.title='new'").unwrap()
    env.write("cached/index.html", "<script src=label.js></script><h1>Second</h1>").unwrap()
    env.run(old).unwrap()
    page = env.browse(address, browser=True).unwrap()
    assert (page.title, page.text.strip()) == ("new", "# Second")


LIST = """<select id=s><option>Ann<option>Ben<option disabled>Eve</select>
<table><thead><tr><th>Name<th>Age</thead><tbody><tr><td>Ann<td>7<tr><td>Ben<td>8</table>"""


def test_an_option_of_a_closed_list_is_clicked(env: DockerEnvironment, page: Any) -> None:
    steps = [
        {"action": "evaluate", "value": f"document.body.innerHTML = {json.dumps(LIST)}"},
        {"action": "click", "target": "#s option:nth-child(2)"},
        {"action": "evaluate", "value": "s.value"},
    ]
    done = env.browse_interact(steps).unwrap().steps
    assert done[2].value == '"Ben"'
    assert '+ option "Ben" [selected]' in "\n".join(done[1].changes)
    refused = env.browse_interact({"action": "click", "target": "#s option:nth-child(3)"})
    assert "is disabled" in str(refused.to_dict().get("error"))


def test_tables_are_markdown(env: DockerEnvironment, page: Any, shop: str) -> None:
    env.browse_interact({"action": "evaluate", "value": f"document.body.innerHTML = {json.dumps(LIST)}"}).unwrap()
    text = env.browse(f"{shop}/", browser=True, offset=1).unwrap().text
    assert text == " Name | Age |\n| --- | --- |\n| Ann | 7 |\n| Ben | 8 |"


def test_a_step_that_fails_ends_the_call(env: DockerEnvironment, page: Any) -> None:
    steps = [
        {"action": "evaluate", "value": "1"},
        {"action": "click", "target": "#none"},
        {"action": "evaluate", "value": "2"},
    ]
    failure = env.browse_interact(steps)
    assert isinstance(failure, Failure)
    assert failure.result is not None
    assert (failure.code, failure.effects, len(failure.result.steps)) == ("element_not_found", "partial", 1)
    assert '- textbox "Name"' in failure.result.outline
    for step, code in (
        ({"action": "click", "target": "e9999"}, "element_not_found"),
        ({"action": "click", "target": "a[["}, "element_not_found"),
        ({"action": "fill", "target": "a", "value": "x"}, "element_not_usable"),
        ({"action": "press", "value": "Hyper+X"}, "element_not_usable"),
        ({"action": "evaluate", "value": "nonsense("}, "script_failed"),
        ({"action": "tab", "value": "77"}, "element_not_usable"),
        ({"action": "dialog"}, "element_not_usable"),
        ({"action": "click"}, "invalid_arguments"),
        ({"action": "upload", "target": "#f", "value": "/etc/shadow"}, "path_outside_roots"),
    ):
        failed = env.browse_interact(step)
        assert isinstance(failed, Failure)
        assert failed.code == code, failed.to_text()
        assert failed.hint


def test_screenshots(env: DockerEnvironment, page: Any) -> None:
    window = env.screenshot().unwrap()
    assert (window.width, window.height) == (1280, 800)
    assert window.path.startswith("/tmp/screenshot-")
    assert window.image is not None
    content = base64.b64decode(window.image["data"])
    assert content.startswith(PNG)
    assert env.stat(window.path).unwrap().size_bytes == window.size_bytes == len(content)
    full = env.screenshot(full=True, path="pictures/full.png").unwrap()
    assert (full.path, full.height > 3000) == ("pictures/full.png", True)
    element = env.screenshot(target="h1").unwrap()
    assert element.height < 100
    assert env.run("stat -c %U pictures/full.png").unwrap().output == "agent\n"


NOISE = """document.body.innerHTML = '<canvas width=1000 height=700>'; const c = document.querySelector('canvas').getContext('2d');
const d = c.createImageData(1000, 700); for (let i = 0; i < d.data.length; i++) d.data[i] = i % 4 == 3 ? 255 : Math.random() * 256;
c.putImageData(d, 0, 0)"""


CHECK_PNG = """
import sys, zlib
data, at = open(sys.argv[1], "rb").read(), 8
while at < len(data):
    end = at + 8 + int.from_bytes(data[at : at + 4])
    assert zlib.crc32(data[at + 4 : end]) == int.from_bytes(data[end : end + 4]), at
    at = end + 4
assert data[-8:-4] == b"IEND"
"""


def test_a_picture_that_comes_in_pieces(env: DockerEnvironment, page: Any) -> None:
    env.browse_interact({"action": "evaluate", "value": NOISE}).unwrap()
    picture = env.screenshot(path="noise.png").unwrap()
    assert picture.size_bytes > 2 * PICTURE_CHUNK
    checked = env.run(argv=["python3", "-c", CHECK_PNG, "noise.png"]).unwrap()
    assert checked.exit_code == 0, checked.output


def test_the_browser_reaches_no_file_of_the_sandbox(env: DockerEnvironment, page: Any) -> None:
    """Threat: a page takes the browser over, which has no sandbox of its own, and reads the workspace."""
    pid = env.run("pgrep -u 61187 -o").unwrap().output.strip()
    status = env.run(f"cat /proc/{pid}/status").unwrap().output
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    assert not env.run(f"cat /proc/{pid}/environ /proc/{pid}/mem; ls /proc/{pid}/fd").unwrap().stdout
    assert env.run("ls /tmp/gamebox-browser-*").unwrap().exit_code != 0, "nor does a command reach what the browser has"


@pytest.mark.parametrize("program", ["chromium", "driver.program"])
def test_a_killed_browser_starts_again(env: DockerEnvironment, page: Any, shop: str, program: str) -> None:
    """Whether the browser ends or what drives it: the next call starts both, and nothing of the last ones is left."""
    container = connect().containers.get(env.container_id)
    container.exec_run(["pkill", "-9", "-f", program], user=BROWSER)
    answer = env.browse(f"{shop}/next", browser=True, timeout_seconds=60)
    if isinstance(answer, Failure):  # it had not been noticed before the call
        assert answer.code == "browser_failed"
        assert answer.retryable
        answer = env.browse(f"{shop}/next", browser=True, timeout_seconds=60)
    assert answer.unwrap().title == "Second"
    left = env.run("ls -d /tmp/gamebox-browser-* | wc -l; pgrep -c -u 61187 -f driver.program").unwrap().output
    assert left.split() == ["1", "1"]
    assert env.run("kill $(pgrep -u 61187)").unwrap().exit_code != 0, "a command cannot end it"


def test_closing_leaves_nothing(image: str) -> None:
    with DockerEnvironment(image=image, network=Network.none()) as env:
        address = serve(env, "shop.py", SITE)
        assert "Chromium opens pages for browse; it has no sandbox of its own" in env.describe()["sandbox"]
        for answer in (env.screenshot(), env.browse_interact({"action": "click", "target": "e1"})):
            assert isinstance(answer, Failure)
            assert answer.error == "No page is open in the browser."
            assert "browse" in hint_for("model", answer.hint)
        assert env.browse(f"{address}/next", browser=True, timeout_seconds=60).ok
        ident = env.container_id
    deadline = time.monotonic() + 60
    engine = connect().api  # what asks for each container that was listed fails if it is gone by then
    while engine.containers(all=True, filters={"id": ident}) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not engine.containers(all=True, filters={"id": ident})


def test_an_image_without_a_browser_says_so(docker_env: Any) -> None:
    for env, where in ((docker_env(), "gamebox setup --browser"), (LocalEnvironment().start(), "DockerEnvironment")):
        for answer in (
            env.browse("http://127.0.0.1:1/", browser=True),
            env.browse_interact({"action": "back"}),
            env.screenshot(),
        ):
            assert isinstance(answer, Failure)
            assert answer.code == "browser_not_available"
            assert where in hint_for("host", answer.hint)
        env.close()
