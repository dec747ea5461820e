"""The package sources of this host, which the steps of a build reach: their addresses, and nothing of this host itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import SandboxError
from sandbox.docker.local_images.building import find_bundle
from sandbox.docker.local_images.package_sources import address_rules, find_package_sources
from sandbox.network.addresses import parse_address
from sandbox.network.policy import judge_address, judge_host
from sandbox.packages import host_indexes
from tests.integration.observing import eventually


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    """What pip and npm are configured with is asked once for a process."""
    host_indexes._found.clear()
    yield
    host_indexes._found.clear()


def is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_addresses_that_are_not_public_are_opened_with_the_ports_of_the_sources() -> None:
    assert address_rules(["http://10.1.2.3/debian", "https://10.1.2.3:8443/simple/", "https://[fd12::7]/"]) == [
        *("10.1.2.3:80", "10.1.2.3:443", "10.1.2.3:8443"), "[fd12::7]:80", "[fd12::7]:443",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "168.63.129.16", "[fd00:ec2::254]", "[::ffff:169.254.169.254]",
     "8.8.8.8", "no-such-host.invalid", "a b"],
)  # fmt: skip
def test_this_host_and_its_cloud_stay_closed_and_public_addresses_need_no_rule(host: str) -> None:
    assert address_rules([f"http://{host}/simple/"]) == []


def test_indexes_are_given_to_the_steps_but_for_those_on_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://someone:hidden@10.9.9.9/simple/")
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:4873/")
    monkeypatch.setenv("GAMEBOX_PACKAGE_HOSTS", "10.8.8.8:8443")
    found = find_package_sources()
    assert found.secrets["PIP_INDEX_URL"] == found.secrets["UV_DEFAULT_INDEX"] == "https://someone:hidden@10.9.9.9/simple/"
    assert found.variables == {}
    assert {"10.9.9.9:443", "10.8.8.8:8443"} <= set(found.rules)
    network = found.network()
    address = parse_address("10.9.9.9")
    assert address is not None
    assert judge_address(network, "index.example.com", address, 443).allowed
    assert not judge_address(network, "index.example.com", address, 22).allowed
    assert not judge_host(network, "10.9.9.8", 443).allowed


def test_no_tool_is_left_behind_when_the_question_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "pid"
    slow = tmp_path / "npm"
    slow.write_text(f"#!/bin/sh\necho $$ > {started}.new\nmv {started}.new {started}\nsleep 600\n")
    slow.chmod(0o755)

    def interrupt() -> None:
        eventually(started.exists)
        raise KeyboardInterrupt

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(host_indexes, "_find_pypi_index", interrupt)
    with pytest.raises(KeyboardInterrupt):
        host_indexes.find_host_indexes()
    assert eventually(lambda: not is_there(int(started.read_text())))
    assert host_indexes._found == {}


def test_a_tool_that_does_not_answer_in_time_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, slow = tmp_path / "pid", tmp_path / "npm"
    slow.write_text(f"#!/bin/sh\necho $$ > {started}.new\nmv {started}.new {started}\nsleep 600\n")
    slow.chmod(0o755)
    wait_for = host_indexes._wait_for

    def wait_once_started(tool: subprocess.Popen[str] | None) -> str | None:
        assert eventually(started.exists)
        return wait_for(tool)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(host_indexes, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(host_indexes, "_wait_for", wait_once_started)
    assert host_indexes.find_host_indexes(pypi=False).npm is None
    assert eventually(lambda: not is_there(int(started.read_text())))


def test_a_tool_that_is_missing_or_fails_has_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host_indexes.find_host_indexes(pypi=False) == host_indexes.HostIndexes(None, None)
    host_indexes._found.clear()
    failing = tmp_path / "npm"
    failing.write_text("#!/bin/sh\necho https://npm.example.com/\nexit 1\n")
    failing.chmod(0o755)
    assert host_indexes.find_host_indexes(pypi=False).npm is None
    host_indexes._found.clear()
    failing.write_text("#!/bin/sh\necho https://npm.example.com/\n")
    assert host_indexes.find_host_indexes(pypi=False).npm == "https://npm.example.com/"


def test_the_certificates_that_are_named_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("named", "variable", "own"):
        (tmp_path / name).write_text(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own"))
    monkeypatch.delenv("GAMEBOX_CA_BUNDLE", raising=False)
    assert find_bundle(None) == tmp_path / "own"
    monkeypatch.setenv("GAMEBOX_CA_BUNDLE", str(tmp_path / "variable"))
    assert find_bundle(None) == tmp_path / "variable"
    assert find_bundle(tmp_path / "named") == tmp_path / "named"
    with pytest.raises(SandboxError, match="not a file"):
        find_bundle(tmp_path / "missing")
