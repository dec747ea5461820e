"""docs/how-to/operate-a-service.md says what is so: the unit is one that systemd takes, and the names are those of the code."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.service.operators.facts import Facts
from sandbox.service.operators.logs import JsonFormatter
from sandbox.service.operators.metrics import Metrics
from sandbox.service.operators.observer import log_request

PAGE = (Path(__file__).parents[4] / "docs/how-to/operate-a-service.md").read_text(encoding="utf-8")
FACTS = Facts(
    request_id="r1", method="POST", route="/v1", action="a", tenant="t", key="k", address="127.0.0.1", target="x", status=200,
    code="c", seconds=0.1, changes=True, operation="run", trace="0",
)  # fmt: skip


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    (unit,) = re.findall(r"^```ini\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert "Type=notify" in unit
    file = tmp_path / "gamebox.service"
    file.write_text(unit.replace("/opt/gamebox/bin/gamebox", str(Path(sys.executable).with_name("gamebox"))))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", file], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "gamebox" in line]) == (0, [])


def test_every_number_is_on_the_page(tmp_path: Path) -> None:
    made = Metrics(dict, tmp_path)
    names = {re.sub(r"_(total|bucket|count|sum|info)$", "", family.name) for family in made.registry.collect()}
    on_page = {re.sub(r"_total$", "", name) for name in re.findall(r"`(gamebox_\w+)", PAGE)}
    assert {name for name in names if name.startswith("gamebox_")} - {"gamebox"} == on_page


def test_the_line_of_the_log_is_as_it_is_written(caplog: pytest.LogCaptureFixture) -> None:
    shown = json.loads(re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0])
    with caplog.at_level(logging.INFO, "sandbox.service.requests"):
        log_request(FACTS)
    (record,) = caplog.records
    assert set(json.loads(JsonFormatter().format(record))) == set(shown)
