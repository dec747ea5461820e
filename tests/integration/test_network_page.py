"""What docs/network.md says of bridges, tried; and that the tests it names are there."""

from __future__ import annotations

import ast
import ipaddress
import re
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path

import docker
import pytest

from sandbox import DockerEnvironment, Limits, Network

from .serving import Pages

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/network.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))
SMALL = Limits(memory_bytes=256 << 20)


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_every_test_that_the_page_names_exists(path: str, name: str) -> None:
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def gateway_of(config: dict[str, str]) -> str:
    """The bridge's own address; an engine that was just installed tells only the network, whose first address it takes."""
    return config.get("Gateway") or str(next(ipaddress.ip_network(config["Subnet"]).hosts()))


@pytest.mark.engine
def test_a_bridge_reaches_services_of_the_host_and_rules_do_not(docker_env: Callable[..., DockerEnvironment]) -> None:
    """A server of the host at the bridge's own address: open to a bridge, closed to everything public, open where it is named."""
    gateway = gateway_of(docker.from_env().networks.get("bridge").attrs["IPAM"]["Config"][0])
    with ThreadingHTTPServer((gateway, 0), Pages) as server:
        server.asked = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        place = f"{gateway}:{server.server_address[1]}"
        command = f"curl -sS -m 20 -o /dev/null -w '%{{http_code}} ' http://{place}/5; ls /sys/class/net"

        def said(network: Network) -> list[str]:
            env = docker_env(limits=SMALL, network=network)
            return sorted(env.run(command).unwrap().output.split())

        try:
            assert said(Network.bridge()) == ["200", "eth0", "lo"]
            assert said(Network.open()) == ["403", "lo"]
            assert said(Network.open(place)) == ["200", "lo"]
        finally:
            server.shutdown()
