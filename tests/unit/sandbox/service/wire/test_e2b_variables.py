"""gamebox serve --print-env e2b."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandbox.service import addresses
from sandbox.service.http.gate import API_ROOTS
from sandbox.service.settings import read_settings
from sandbox.service.wire.e2b.unknown import ROOTS
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
    found = variables(read_settings({"data": tmp_path, **settings}))
    assert found == {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_VOLUME_API_URL": url}


def test_the_first_key_is_among_them(tmp_path: Path) -> None:
    (tmp_path / "admin.key").write_text("e2b_0011\n")
    assert variables(read_settings({"data": tmp_path}))["E2B_API_KEY"] == "e2b_0011"


def test_with_tls_clients_find_sandboxes_by_name_and_trust_the_certificate(tmp_path: Path) -> None:
    settings = read_settings({"data": tmp_path, "tls_local": True, "port": 8443})
    url, bundle, authority = "https://127.0.0.1:8443", f"{tmp_path}/tls/bundle.pem", f"{tmp_path}/tls/ca.pem"
    trust = {"SSL_CERT_FILE": bundle, "REQUESTS_CA_BUNDLE": bundle, "NODE_EXTRA_CA_CERTS": authority}
    named = {"E2B_API_URL": url, "E2B_VOLUME_API_URL": url, "E2B_DOMAIN": "sandboxes.localhost:8443", **trust}
    assert variables(settings) == named
    assert variables(settings, 443)["E2B_DOMAIN"] == "sandboxes.localhost"
    assert variables(settings, resolves=False) == {**named, "E2B_SANDBOX_URL": url}
    given = {"data": tmp_path, "tls_cert": "a", "tls_key": "b"}
    url = "https://127.0.0.1:8080"
    assert variables(read_settings(given)) == {"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_VOLUME_API_URL": url}
    assert variables(read_settings({**given, "domain": "box.example.net"}))["E2B_DOMAIN"] == "box.example.net:8080"


def test_gamebox_has_variables_too(tmp_path: Path) -> None:
    (tmp_path / "admin.key").write_text("e2b_0011\n")
    found = {"GAMEBOX_URL": "http://127.0.0.1:8080", "GAMEBOX_API_KEY": "e2b_0011"}
    assert addresses.variables(read_settings({"data": tmp_path})) == found
    with_tls = addresses.variables(read_settings({"data": tmp_path, "tls_local": True}))
    assert with_tls["GAMEBOX_CA_FILE"] == f"{tmp_path}/tls/ca.pem"


def test_the_name_of_the_api_has_just_its_routes() -> None:
    assert {*ROOTS} == API_ROOTS
