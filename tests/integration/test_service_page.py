"""The example of the page on services runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.servers.gamebox_service import shared_service

pytestmark = pytest.mark.engine
PAGE = Path(__file__).parents[2] / "docs/how-to/use-a-service.md"


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    service = shared_service()
    monkeypatch.setenv("GAMEBOX_URL", service.url)
    monkeypatch.setenv("GAMEBOX_API_KEY", service.key)
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    exec(compile(example, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.split() == ["42", "1", "2", "3", "here"]
