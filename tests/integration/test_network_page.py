"""What docs/explanation/network.md says of bridges, tried."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer

import docker
import pytest

from sandbox import DockerEnvironment, Limits, Network

from .serving import Pages

SMALL = Limits(memory_bytes=256 << 20)


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
