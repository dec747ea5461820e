"""gamebox serve --print-env e2b."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandbox.service.settings import read_settings
from sandbox.service.wire.e2b.variables import variables


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://127.0.0.1:8080"),
        ({"host": "::1", "port": 9000}, "http://[::1]:9000"),
        ({"host": "0.0.0.0", "behind_proxy": ("10.0.0.0/8",)}, "http://127.0.0.1:8080"),
        ({"allowed_hosts": ("*.box.example.com", "box.example.com")}, "http://box.example.com:8080"),
    ],
)
def test_the_address_is_one_that_clients_reach(tmp_path: Path, settings: dict[str, Any], url: str) -> None:
    assert variables(read_settings({"data": tmp_path, **settings})) == {"E2B_API_URL": url, "E2B_SANDBOX_URL": url}


def test_the_first_key_is_among_them(tmp_path: Path) -> None:
    (tmp_path / "admin.key").write_text("e2b_0011\n")
    assert variables(read_settings({"data": tmp_path}))["E2B_API_KEY"] == "e2b_0011"
