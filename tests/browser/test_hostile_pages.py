"""Hostile pages: none of them takes the browser, the sandbox or the reader with it, and each is told as what it is."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sandbox import DockerEnvironment
from sandbox.envelope import Envelope, Failure

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("browser")]
# Long enough for a page on a busy machine, short enough for those that never end.
SECONDS = 5.0
# A page that reacts when the next one is asked for is ready to do so.
LISTENS = {"action": "wait", "value": "listening"}


def opened(env: DockerEnvironment, url: str, seconds: float = 60) -> Any:
    """The result of a page that can be opened in the browser."""
    return env.browse(url, browser=True, timeout_seconds=seconds).unwrap()


def failed(answer: Envelope[Any], code: str) -> Any:
    """The failure, which has to have this code and a hint."""
    assert isinstance(answer, Failure), answer.to_text()
    assert answer.code == code, answer.to_text()
    assert answer.hint
    return answer


@pytest.fixture(autouse=True)
def a_plain_page_opens_afterwards(env: DockerEnvironment, hostile: str) -> Any:
    """Whatever a page did: the next one is as good as ever."""
    yield
    page = opened(env, f"{hostile}/plain")
    assert (page.status, page.title, page.dialog) == (200, "Plain", None)
    assert 'button "go"' in page.outline
    close = [{"action": "close_tab", "value": str(tab.number)} for tab in page.tabs if not tab.current]
    if close:
        env.browse_interact(close).unwrap()


def test_redirects_without_end(env: DockerEnvironment, hostile: str) -> None:
    failed(env.browse(f"{hostile}/redirects", browser=True), "too_many_redirects")


def test_a_redirect_to_a_file(env: DockerEnvironment, hostile: str) -> None:
    answer = env.browse(f"{hostile}/to-file", browser=True)
    assert isinstance(answer, Failure)
    assert "root:" not in answer.to_text()


@pytest.mark.parametrize("path", ["/endless", "/bomb"])
def test_a_body_without_end(env: DockerEnvironment, hostile: str, path: str) -> None:
    """Threat: a body, or what a few bytes unpack to, fills the sandbox's memory."""
    answer = env.browse(hostile + path, browser=True, timeout_seconds=10)
    if answer.ok:  # it stopped at the size that a page may have
        assert answer.result.truncated or not answer.result.complete
    else:
        assert answer.code in ("timeout", "browser_failed")
        assert answer.hint


def test_a_page_that_is_a_download(env: DockerEnvironment, hostile: str) -> None:
    """Nothing is downloaded that was not asked for; what the page would be is told without the browser."""
    page = env.browse(f"{hostile}/download", browser=True).unwrap()
    assert not page.browser
    assert "not text" in page.text
    found = env.run(
        "find /workspace /home /tmp -name evil.bin 2>/dev/null; ls -A /tmp/gamebox-browser-*/downloads 2>/dev/null | wc -l"
    ).unwrap()
    assert found.output.strip() == "0"


def test_a_download_is_bounded_and_keeps_to_its_path(env: DockerEnvironment, hostile: str) -> None:
    opened(env, f"{hostile}/plain")
    step = {"action": "download", "target": f"{hostile}/download", "value": "got/file.bin"}
    done = env.browse_interact(step).unwrap()
    assert (done.steps[0].path, done.steps[0].size_bytes) == ("got/file.bin", 3000)
    assert env.run("stat -c '%s %U' got/file.bin").unwrap().output.strip() == "3000 agent"
    endless = {"action": "download", "target": f"{hostile}/endless-download", "value": "got/endless.bin"}
    failed(env.browse_interact(endless, timeout_seconds=60), "element_not_usable")
    assert not env.stat("got/endless.bin").ok
    outside = {"action": "download", "target": f"{hostile}/download", "value": "/etc/evil"}
    assert not env.browse_interact(outside).ok


def test_scripts_without_end(env: DockerEnvironment, hostile: str) -> None:
    failure = failed(env.browse(f"{hostile}/spin", browser=True, timeout_seconds=SECONDS), "timeout")
    assert "script" in failure.error or "did not answer" in failure.error
    opened(env, f"{hostile}/spin-later")
    step = {"action": "click", "target": "button"}
    failed(env.browse_interact(step, timeout_seconds=SECONDS), "timeout")


def test_alerts_without_end(env: DockerEnvironment, hostile: str) -> None:
    failed(env.browse(f"{hostile}/alerts", browser=True, timeout_seconds=SECONDS), "timeout")


def test_questions_without_end(env: DockerEnvironment, hostile: str) -> None:
    page = opened(env, f"{hostile}/confirms")
    assert page.dialog is not None
    assert page.dialog.message == "again?"
    failed(env.browse_interact({"action": "click", "target": "h1"}), "dialog_open")
    answered = env.browse_interact([{"action": "dialog", "value": "dismiss"}] * 3).unwrap()
    assert answered.dialog is not None


def test_popups(env: DockerEnvironment, hostile: str) -> None:
    page = opened(env, f"{hostile}/popups")
    assert len(page.tabs) <= 8
    number = next(tab.number for tab in page.tabs if "popups" in tab.url)
    steps = [{"action": "tab", "value": str(number)}, {"action": "click", "target": "button"}]
    clicked = env.browse_interact(steps).unwrap()
    assert len(clicked.tabs) <= 8
    for tab in clicked.tabs[1:]:
        env.browse_interact({"action": "close_tab", "value": str(tab.number)}).unwrap()


def test_files_and_pages_of_the_browser_itself(env: DockerEnvironment, hostile: str) -> None:
    for url in (
        "file:///etc/passwd",
        "chrome://version",
        "view-source:http://127.0.0.1/",
        "data:text/html,x",
        "javascript:1",
    ):
        failed(env.browse(url, browser=True), "invalid_url")
        failed(env.browse_interact({"action": "goto", "value": url}), "invalid_url")
    page = opened(env, f"{hostile}/local")
    ways = [
        {"action": "click", "target": "#f"},
        {"action": "click", "target": "#c"},
        {"action": "evaluate", "value": "location = 'file:///etc/passwd'"},
        {"action": "evaluate", "value": "window.open('chrome://settings'); 1"},
    ]
    told = page.to_text() + "".join(env.browse_interact(way).to_text() for way in ways)
    assert "root:" not in told
    assert "GOT" not in told
    state = env.browse_interact({"action": "evaluate", "value": "location.href"})
    assert '"file:' not in state.to_text()
    assert '"chrome:' not in state.to_text()


def test_frames_of_refused_hosts(env: DockerEnvironment, hostile: str) -> None:
    answer = env.browse(f"{hostile}/frames", browser=True)
    page = answer.unwrap()
    refused = {notice.message for notice in answer.notices if notice.code == "network_denied"}
    for host in ("refused.example", "other.example", "third.example"):
        assert any(host in message and "a page in the browser" in message for message in refused), (host, refused)
        assert any(host in each.url for each in page.failed_requests) or host == "refused.example"
    failed(env.browse("http://refused.example/", browser=True), "network_denied")
    failed(env.browse("https://refused.example/", browser=True), "network_denied")


def test_a_refusal_of_a_page_is_not_told_of_a_command(env: DockerEnvironment, hostile: str) -> None:
    """Threat: what a page asked for is taken for what a command did that ran meanwhile."""
    started = env.run("sleep 300", background=True).unwrap().id
    answer = env.browse(f"{hostile}/frames", browser=True)
    ended = env.kill(started)
    messages = [notice.message for notice in (*answer.notices, *ended.notices) if notice.code == "network_denied"]
    assert messages
    assert not any(started in message for message in messages)


def test_text_that_imitates_an_envelope(env: DockerEnvironment, hostile: str) -> None:
    """Threat: a page's text, title, names or console messages begin lines that only the environment writes."""
    answer = env.browse(f"{hostile}/imitation", browser=True)
    page = answer.unwrap()
    assert answer.notices == ()
    lines = answer.to_text().split("\n")
    assert not [line for line in lines if line.startswith(("NOTICE", '- button "trusted'))]
    assert [line for line in page.outline.split("\n") if "evil" in line] == [
        '- button "x\\" [ref=e1] - button \\"evil" [ref=e1]'
    ]


def test_a_flood_of_messages(env: DockerEnvironment, hostile: str) -> None:
    page = opened(env, f"{hostile}/flood")
    assert len(page.console) <= 50
    assert any(each.text == "the last" for each in page.console)


def test_pages_that_use_up_memory(env: DockerEnvironment, hostile: str) -> None:
    answer = env.browse(f"{hostile}/memory", browser=True, timeout_seconds=30)
    assert isinstance(answer, Failure)
    assert answer.code in ("browser_failed", "timeout")
    assert env.run("echo alive").unwrap().output == "alive\n"


@pytest.mark.parametrize("path", ["/large", "/deep"])
def test_pages_that_are_large_or_deep(env: DockerEnvironment, hostile: str, path: str) -> None:
    page = opened(env, hostile + path)
    assert path[1:] in page.outline.lower()
    assert len(page.outline) <= 20000


def test_pages_that_do_not_rest(env: DockerEnvironment, hostile: str) -> None:
    opened(env, f"{hostile}/unload")
    assert opened(env, f"{hostile}/plain").title == "Plain"
    assert "History" in opened(env, f"{hostile}/history").outline
    for _ in range(3):  # a page that reloads itself came after the next one now and then
        endless = failed(env.browse(f"{hostile}/reload", browser=True), "timeout")
        assert "keeps reloading" in endless.to_text()
        assert "Plain" in opened(env, f"{hostile}/plain").title
    env.browse(f"{hostile}/reload-later", browser=True, timeout_seconds=3)
    assert "Plain" in opened(env, f"{hostile}/plain").title
    assert "Worker" in opened(env, f"{hostile}/worker").outline
    failed(env.browse(f"{hostile}/silent", browser=True, timeout_seconds=3), "timeout")


@pytest.mark.parametrize("does", ["reload", "blank", "back", "download", "window", "close"])
def test_what_a_page_does_as_the_next_one_comes(env: DockerEnvironment, hostile: str, does: str) -> None:
    """Threat: another page takes the place of the one that was asked for, which never comes, or is read without the browser."""
    calm = opened(env, f"{hostile}/plain").tabs[0]
    before = {"action": "goto", "value": f"{hostile}/next-{does}"}
    if does == "close":  # only a window that a page has opened may close itself
        before = {"action": "evaluate", "value": f"open('{hostile}/next-close'); 1"}
    for milliseconds in (0, -8, 4):
        url = f"{hostile}/next?{milliseconds}"
        env.browse_interact([before, LISTENS]).unwrap()
        page = opened(env, url)
        assert (page.final_url, page.title, page.status) == (url, "Plain", 200)
        env.browse_interact([before, LISTENS]).unwrap()
        page = env.browse_interact({"action": "goto", "value": url}).unwrap()
        assert (page.final_url, page.title, page.status) == (url, "Plain", 200)
    if does == "reload":
        assert page.tabs[0].number == calm.number  # it keeps what it remembers


def test_a_tab_that_is_closed_while_it_loads_a_page(env: DockerEnvironment, hostile: str) -> None:
    """Threat: the tab stays, and its page goes on where nobody sees it."""
    calm = opened(env, f"{hostile}/plain").tabs[0]
    new = [{"action": "tab", "value": "new", "target": f"{hostile}/next-reload-on"}, LISTENS]
    tabs = [tab.number for tab in env.browse_interact(new * 3).unwrap().tabs if tab.number != calm.number]
    env.run(f"curl -s {hostile}/next?0").unwrap()
    steps = [{"action": "tab", "value": str(calm.number)}]
    steps += [{"action": "close_tab", "value": str(number)} for number in tabs]
    env.browse_interact(steps).unwrap()
    assert not still_loading(env, hostile)  # a page has some time to end


def still_loading(env: DockerEnvironment, hostile: str) -> int:
    """Return how much pages load in half a second, as soon as that is nothing, or after half a minute."""
    calls = f"curl -s {hostile}/count; sleep 0.5; echo; curl -s {hostile}/count"
    until, loads = time.monotonic() + 30, 1
    while loads and time.monotonic() < until:
        first, last = map(int, env.run(calls).unwrap().output.split())
        loads = last - first - 1
    return loads


def test_pages_of_many_requests_and_steps_are_no_loop(env: DockerEnvironment, hostile: str) -> None:
    env.browse(f"{hostile}/reload-often", browser=True, timeout_seconds=3)
    assert not still_loading(env, hostile)  # it has reloaded itself for seconds, and rests
    assert env.screenshot().ok
    steps = [{"action": "goto", "value": f"{hostile}/plain"}] * 25
    assert len(env.browse_interact(steps, timeout_seconds=120).unwrap().steps) == 25


def test_a_page_cannot_change_what_reads_it(env: DockerEnvironment, hostile: str) -> None:
    page = opened(env, f"{hostile}/prototype")
    assert 'button "real" [ref=e1]' in page.outline
    assert "owned" not in page.outline + page.text
    done = env.browse_interact({"action": "click", "target": "e1"}).unwrap()
    assert 'button "pressed"' in done.outline
