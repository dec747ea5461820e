"""schemathesis over the whole API with a real sandbox: the short run. ``make api`` is the long one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.integration.own_engine import IMAGE
from tests.openapi.running import ROOT, run
from tests.servers.gamebox_service import ServiceProcess

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


def test_every_route_answers_as_its_document_says(place: Path, tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "data", "--stop-all", "--behind-proxy", "127.0.0.1/32").start()
    try:
        options = ["--phases", "examples,fuzzing", "--max-examples", "1", "--seed", "1"]
        found = run(service.url, service.key, IMAGE, tmp_path, options)
    finally:
        service.stop()
    assert found.succeeded, found.output
    # A session of SWE-ReX is a bash, which the image of this engine lacks; test_swerex has sessions.
    without_bash = {f"POST /wire/swerex/{{sandbox_id}}/{name}" for name in ("create_session", "run_in_session", "close_session")}
    assert set(found.never_carried_out) == without_bash, found.statuses


def test_overrides_are_few_and_have_reasons() -> None:
    tree = ast.parse((ROOT / "tests/openapi/overrides.py").read_text(encoding="utf-8"))
    (overrides,) = [
        ast.literal_eval(each.value)
        for each in tree.body
        if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "OVERRIDES"
    ]
    assert len(overrides) <= 5
    assert all(len(reason) > 40 for reason in overrides.values())
