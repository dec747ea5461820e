"""Side services as values: what they may be called, which ports they have, what image files say of users."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from sandbox import DockerEnvironment, Network, Ready, SideService
from sandbox.aio import AsyncEnvironment
from sandbox.docker.container import image_start
from sandbox.docker.services.running_service import service_environment
from sandbox.envelope import Success
from sandbox.errors import ErrorCode, SandboxError
from sandbox.messages.faults import word_notice
from sandbox.messages.notices import host_notice
from sandbox.network.connections import Connection
from sandbox.network.services.names import assign_addresses, no_proxy_value
from sandbox.operations import LogsResult
from sandbox.testing import FakeEnvironment


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"port": None}, "A service has no port"),
        ({"command": ""}, "The command of a service is empty"),
        ({"port": "5432"}, "port of a service has '5432', which is not a port"),
        ({"port": 0}, "port of a service has 0"),
        ({"port": True}, "port of a service has True"),
        ({"ports": 5432}, "ports of a service is 5432, which is not a list"),
        ({"ports": "5432"}, "ports of a service is '5432'"),
        ({"ports": [5432, 65536]}, "ports of a service has 65536"),
        ({"command": ()}, "The command of a service is empty"),
    ],
)
def test_a_service_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SandboxError, match=said) as caught:
        SideService(**{"image": "x", "port": 1, **options})
    assert caught.value.code is ErrorCode.invalid_configuration
    assert caught.value.hint


def test_the_sandbox_of_a_service_is_what_its_profile_says() -> None:
    """It was made as that of the profile root, whose name and limits were then overwritten in part (review of the sandbox, 5.9)."""
    user = image_start.ImageUser("postgres", 999, 999, "/var/lib/postgresql")
    env = service_environment(SideService(image="x", port=1), user, print)
    assert (env.profile.name, env.profile.uid, env.profile.gid) == ("service", 999, 999)
    assert env.backend.describe().checkpoints_hold_all is env.profile.read_only_root
    assert env.profile.with_least_limits(env.limits) == env.limits


def test_ports_are_told_once_and_in_order() -> None:
    assert SideService(image="x", port=2, ports=(1, 2, 3)).all_ports == (2, 1, 3)
    assert SideService(image="x", ports=[7]).all_ports == (7,)


@pytest.mark.parametrize(
    "options",
    [
        {"log": "a", "http": "/"},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("inf")},
        {"http": "health"},
        {"command": "x", "log": "y"},
    ],
)
def test_ready_is_one_thing(options: dict[str, Any]) -> None:
    with pytest.raises(SandboxError) as caught:
        Ready(**options)
    assert caught.value.code is ErrorCode.invalid_configuration


@pytest.mark.parametrize(
    "name", ["", "DB", "a b", "localhost", "x.localhost", "127.0.0.1", "a\nb", "-", "a" * 64, "2130706433"]
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(SandboxError) as caught:
        DockerEnvironment(services={name: SideService(image="x", port=1)})
    assert caught.value.code is ErrorCode.invalid_configuration
    assert repr(name) in caught.value.message


@pytest.mark.parametrize("ports", [tuple(range(1, 40))])
def test_what_are_too_many_ports(ports: tuple[int, ...]) -> None:
    with pytest.raises(SandboxError, match="'db' has the ports"):
        DockerEnvironment(services={"db": SideService(image="x", ports=ports)})


@pytest.mark.parametrize("value", ["postgres", {"image": "postgres"}, None])
def test_what_is_no_service(value: Any) -> None:
    with pytest.raises(SandboxError, match=r"The service 'db' is ('postgres'|dict|NoneType), which is not") as caught:
        DockerEnvironment(services={"db": value})
    assert caught.value.code is ErrorCode.invalid_configuration
    assert "services={'db': SideService(" in caught.value.hint


@pytest.mark.parametrize("port", [0, 65536, -1])
def test_waiting_for_what_is_no_port_is_refused_at_once(port: Any) -> None:
    answer = FakeEnvironment().wait_for_port(port)
    assert not answer.ok
    assert answer.code is ErrorCode.invalid_arguments
    assert answer.error == f"port is {port!r}, which is not a port."
    assert asyncio.run(AsyncEnvironment(FakeEnvironment()).wait_for_port(port)).to_dict()["error"] == answer.error


def test_the_network_of_an_asynchronous_environment_is_that_of_its_own() -> None:
    env = FakeEnvironment()
    aio = AsyncEnvironment(env)
    heard: list[object] = []
    aio.on_connection = heard.append
    assert env.on_connection == aio.on_connection == heard.append
    aio.network = Network.allow("example.com")
    assert env.network == aio.network == Network.allow("example.com")
    assert aio.services == {}
    assert AsyncEnvironment(DockerEnvironment()).services == {}
    with pytest.raises(AttributeError):
        aio.on_conection = heard.append  # type: ignore[attr-defined]


def test_every_name_has_an_address_of_its_own() -> None:
    names = assign_addresses({"db": (5432,), "llm.internal": (80,), "cache": (6379, 6379)})
    assert [(n.name, n.address, n.ports) for n in names] == [
        ("db", "127.24.0.2", (5432,)), ("llm.internal", "127.24.0.3", (80,)), ("cache", "127.24.0.4", (6379,)),
    ]  # fmt: skip
    assert no_proxy_value(names, "") == "localhost,127.0.0.1,::1,db,llm.internal,cache"
    assert no_proxy_value(names, "near.example.com,db") == "near.example.com,db,llm.internal,cache"
    with pytest.raises(SandboxError, match="There are 65 services"):
        assign_addresses({f"s{number}": (1,) for number in range(65)})


def test_a_kept_sandbox_has_none() -> None:
    with pytest.raises(SandboxError, match="A kept sandbox cannot have the side services db"):
        DockerEnvironment(keep=True, services={"db": SideService(image="x", port=1)})


def test_who_attaches_with_side_services_is_told_what_can_be_given() -> None:
    with pytest.raises(SandboxError, match="A kept sandbox cannot have the side services db") as caught:
        DockerEnvironment.attach("any", services={"db": SideService(image="x", port=1)})  # type: ignore[arg-type]
    assert "Give attach only the Services" in caught.value.hint


def test_the_end_of_a_service_is_told_by_the_host_alone() -> None:
    notice = host_notice("service_ended", {"name": "db", "how": "exit code 3", "lines": "one\n\x1b[31mtwo\n"})
    ended = "The service db has ended (exit code 3) and does not come back."
    assert notice.message == f'{ended} Its last lines: "one | ?[31mtwo".'
    assert notice.hint.startswith("Do what can be done without it")
    assert word_notice("service_ended", {"name": "db", "how": "never"}) is None


PASSWD = """root:x:0:0:root:/root:/bin/bash
broken
postgres:x:101:103:PostgreSQL:/var/lib/postgresql:/bin/bash
strange:x:-5:103::/:
other:x:102:99999999999::/:
homeless:x:33:33:::
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("root", ("root", 0, 0, "/root")),
        ("0:0", ("root", 0, 0, "/root")),
        ("postgres", ("postgres", 101, 103, "/var/lib/postgresql")),
        ("101", ("postgres", 101, 103, "/var/lib/postgresql")),
        ("postgres:ssl", ("postgres", 101, 112, "/var/lib/postgresql")),
        ("postgres:7", ("postgres", 101, 7, "/var/lib/postgresql")),
        ("4711", ("4711", 4711, 0, "/")),
        ("homeless", ("homeless", 33, 33, "/")),
        ("strange", None),
        ("other", None),
        ("nobody-here", None),
        ("postgres:nogroup", None),
        ("broken", None),
        ("-5", None),
        ("99999999999", None),
    ],
)
def test_users_as_images_name_them(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: tuple[str, int, int, str] | None
) -> None:
    files = {"/etc/passwd": PASSWD, "/etc/group": "broken\nssl:x:112:\nstrange:x:many:\n"}
    monkeypatch.setattr(image_start, "_read_file", lambda _image, path: files[path])
    if expected is None:
        with pytest.raises(SandboxError, match=r"The image 'img' has no (user|group)") as caught:
            image_start._find_user("img", "sha256:0", text)
        assert caught.value.code is ErrorCode.invalid_configuration
        return
    found = image_start._find_user("img", "sha256:0", text)
    assert (found.name, found.uid, found.gid, found.home) == expected


def test_what_services_print_is_masked_as_in_the_sandbox_they_stand_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    env = DockerEnvironment(services={"web": SideService(image="gamebox/base", port=80)})
    env.secret("TOKEN", "Sekret0123456789")
    side, beside = DockerEnvironment(), cast("Any", env)._services._side
    beside._take(side)
    env.secret("LATER", "Later0123456789")
    assert side.hidden.mask.text("Sekret0123456789 Later0123456789") == "***TOKEN*** ***LATER***"
    assert side.hidden.variables(None) == {}

    class Another:
        """A service of another environment, which masks nothing for this one."""

        def logs(self) -> Success[LogsResult]:
            return Success(LogsResult.model_construct(content="it said Sekret0123456789", id="1"))

    monkeypatch.setattr(type(env), "services", {"web": Another()})
    assert cast("Any", env.service_logs("web").unwrap()).content == "it said ***TOKEN***"


def test_a_secret_in_the_name_of_a_host_is_masked_in_any_letters() -> None:
    env = DockerEnvironment(network=Network.allow("sekret0123456789.example.com"))
    env.secret("TOKEN", "Sekret0123456789")
    assert "***TOKEN***.example.com" in env.describe()["network"]
    assert "sekret" not in env.describe()["network"]
    why = "sekret0123456789.example.com has no address"
    cast("Any", env)._network.log.add(Connection("Sekret0123456789.example.com", 80, "failed", why=why))
    assert "ekret" not in repr(env.connections)
