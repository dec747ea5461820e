"""The example of the how-to page does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
