"""The examples of the pages on the browser do what the pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandbox import DockerEnvironment

from . import answers

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("browser")]
PAGE = Path(__file__).parents[2] / "docs/how-to/test-a-web-app.md"


def test_the_example(
    image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    [example] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    [outline] = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(PAGE), "exec"), {})
    shown = capsys.readouterr().out
    assert shown == f"{outline}ReferenceError: greting is not defined\n+ text: Hello, Ann\n"
    assert (tmp_path / "greeter.png").read_bytes().startswith(b"\x89PNG")


def test_the_answers(image: str) -> None:
    with DockerEnvironment(image=image) as env:
        text, picture = answers.answers(env)
    # Another version of Chromium may draw a few pixels more.
    size = re.compile(r"\d+x\d+ pixels, \d+ bytes")
    assert size.sub("", text) in size.sub("", answers.PAGE.read_text(encoding="utf-8")), "python -m tests.browser.answers writes it"
    assert answers.PICTURE.read_bytes()[:20] == picture[:20], "it has another width"
