"""SandboxSpec: every option of a sandbox in one value that can be written down, and that holds no secret."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import gamebox_pytest
from agent.errors import AgentErrorCode
from agent.job.options import AgentOptions
from sandbox import DockerEnvironment, ErrorCode, Limits, Network, PackageCache, SandboxError, Service, SideService
from sandbox.cli.sandbox_options import FLAGS, OF_KEPT, sandbox_of, with_sandbox_options
from sandbox.docker.container.disks.disk import Disk
from sandbox.docker.kept import kept
from sandbox.docker.kept.labels import KEEP_LABEL
from sandbox.docker.spec import CALLABLES, HostParts, SandboxSpec
from sandbox.guest.protocol.wire import PROTOCOL
from sandbox.pytest_plugin import options as plugin

SECRET = "hunter2-hunter2"


def environment(tmp_path: Path) -> DockerEnvironment:
    """A sandbox that is asked for everything, with a secret wherever there can be one."""
    (tmp_path / "ca.pem").write_text("")
    (tmp_path / "work").mkdir(exist_ok=True)
    return DockerEnvironment(
        "example:1",
        tmp_path / "work",
        limits=Limits(pids=100, idle_seconds=None),
        network=Network.allow("example.com", "*.example.org:443", ask=lambda *_: None, names={"a.example.com": "10.0.0.1"})
        .with_rules("10.1.0.0/16")
        .without("b.example.com"),
        env={"PASSWORD": SECRET},
        ca_bundle=tmp_path / "ca.pem",
        approver=lambda *_: True,
        report=lambda _: None,
        profile="root-on-request",
        runtime="runsc",
        track_changes=False,
        keep_seconds=60,
        services={
            "llm": Service("llm", "https://api.example.com", headers={"X-Api-Key": SECRET}, methods=("GET",), paths=("/v1/*",)),
            "db": SideService(image="db:1", ports=[5432], env={"DB_PASSWORD": SECRET}, command=["serve", "-v"]),
        },
        cache=PackageCache(tmp_path / "cache", pypi=f"https://me:{SECRET}@packages.example.com/simple/", npm=""),
        read_roots=["/etc"],
        pull=True,
    )


def test_a_spec_comes_back_from_json(tmp_path: Path) -> None:
    spec = environment(tmp_path).spec
    assert {f.name for f in fields(spec)} - {"keep", "name"} == set(spec.to_data()), "every option was asked for"
    again = SandboxSpec.from_data(json.loads(spec.to_json()))
    assert again == spec
    assert again.to_json() == spec.to_json()
    assert SandboxSpec.from_data({}) == SandboxSpec()
    private = SandboxSpec(network=Network.allow("packages.example.com", private=True))
    assert SandboxSpec.from_data(private.to_data()) == private


def test_a_spec_holds_no_secret_and_names_what_is_missing(tmp_path: Path) -> None:
    env = environment(tmp_path)
    spec = env.spec
    assert spec.beside == (
        "network.ask", "approver", "report", "services.llm.headers.X-Api-Key", "services.db.env.DB_PASSWORD", "cache.pypi",
    )  # fmt: skip
    assert spec.env == ("PASSWORD",)
    labels = kept.Kept("gamebox-0123456789abcdef", kept.new_token(), spec, Disk("memory", ())).labels()
    for text in (spec.to_json(), repr(spec), str(spec), repr(env), repr(env._parts), str(labels)):
        assert SECRET not in text


def test_a_sandbox_is_made_from_its_spec_and_what_the_spec_names(tmp_path: Path) -> None:
    env = environment(tmp_path)
    again = DockerEnvironment.from_spec(env.spec, env._parts)
    assert again.spec == env.spec
    assert again._parts.whole["env"] == {"PASSWORD": SECRET}
    with pytest.raises(SandboxError, match="made with env, which is not part") as missing:
        DockerEnvironment.from_spec(env.spec)
    assert missing.value.code is ErrorCode.invalid_configuration


def test_every_option_of_the_constructor_is_one_of_the_spec() -> None:
    taken = list(inspect.signature(DockerEnvironment).parameters)
    assert sorted(taken) == sorted([*({f.name for f in fields(SandboxSpec)} - {"beside"}), *CALLABLES])
    assert DockerEnvironment().spec == SandboxSpec(), "the defaults are the same"


CHECKED = [f.name for f in fields(SandboxSpec) if f.metadata.get("accepts", object) is not object]


@pytest.mark.parametrize("wrong", [True, {1, 2}])
@pytest.mark.parametrize("name", [*CHECKED, *CALLABLES])
def test_an_argument_of_the_wrong_type_is_named(name: str, wrong: Any) -> None:
    expected = rf"^DockerEnvironment\(\): {name} must be .*, not {type(wrong).__name__}\.$"
    with pytest.raises(TypeError, match=expected):
        DockerEnvironment(**{name: wrong})


@pytest.mark.parametrize(
    "data",
    [
        {"imge": "x"}, {"image": 1}, {"pull": 1}, {"limits": {"memory_bytes": 1}}, {"limits": {"x": 1}}, {"limits": []},
        {"network": "none"}, {"network": {"mode": "host"}}, {"network": {"mode": "allow", "rules": ["http://x/"]}},
        {"network": {"mode": "allow", "rules": [{"rule": "*", "private": True}]}}, {"env": "PATH"}, {"services": [{"name": "x"}]},
        {"services": [{"kind": "Service", "name": "X", "upstream": "https://example.com"}]}, {"cache": {"x": 1}},
        {"keep_seconds": True}, {"services": [{"kind": "x", "name": "y"}]}, {"network": {"mode": ["allow"]}},
        {"keep_seconds": float("nan")}, {"keep_seconds": float("inf")}, {"keep_seconds": 10**400}, {None: 1, "x": 2},
        [["image", "x"]], 5, None, {"network": {"mode": "open", "deny": ["example.com"]}},
        {"network": {"mode": "bridge", "denied": ["example.com"]}},
        {"network": {"mode": "none", "rules": ["example.com"]}}, {"network": {"mode": "allow", "rules": "ab"}},
        {"services": [{"kind": "SideService", "name": ["db"], "image": "x", "port": 5}]}, {"cache": {"directory": ["x"]}},
        {"services": [{"kind": "SideService", "name": "db", "image": "x", "port": 5}] * 2}, {"cache": {"directory": 5}},
    ],
)  # fmt: skip
def test_data_that_is_no_spec_is_refused_in_words(data: dict[str, Any]) -> None:
    with pytest.raises(SandboxError) as caught:
        SandboxSpec.from_data(data)
    assert caught.value.code in (ErrorCode.invalid_configuration, ErrorCode.invalid_limits)
    assert caught.value.hint


MISPLACED = {"X-Api-Key": SECRET}
CREDENTIALS = f"https://me:{SECRET}@packages.example.com/"


@pytest.mark.parametrize("name", [f.name for f in fields(SandboxSpec)])
def test_no_message_on_data_has_a_value_that_may_be_a_secret(name: str) -> None:
    """A client that gives ``env`` with its values, say, finds them in no log of the server."""
    for value in (MISPLACED, [MISPLACED], [[CREDENTIALS]]):
        with pytest.raises(SandboxError) as caught:
            SandboxSpec.from_data({name: value})
        assert SECRET not in f"{caught.value!r} {caught.value}"


@pytest.mark.parametrize(
    "data",
    [
        {"services": [{"kind": "Service", "name": "llm", "upstream": "https://api.example.com", "headers": MISPLACED}]},
        {"services": [{"kind": "SideService", "name": "db", "image": "x", "port": 5, "env": MISPLACED}]},
        {"cache": {"directory": "/x", "pypi": CREDENTIALS}},
    ],
)
def test_data_cannot_put_a_secret_into_a_spec(data: dict[str, Any]) -> None:
    with pytest.raises(SandboxError, match=r"cannot hold (services|cache)\.") as caught:
        SandboxSpec.from_data(data)
    assert caught.value.code is ErrorCode.invalid_configuration
    assert SECRET not in f"{caught.value!r} {caught.value}"


def test_equal_specs_have_the_same_text_and_hash(tmp_path: Path) -> None:
    asking = Network.allow("example.com", ask=lambda *_: None, ask_seconds=5)
    one, other = (
        DockerEnvironment(keep_seconds=seconds, limits=Limits(cpus=cpus), network=network).spec
        for seconds, cpus, network in ((60, 1, asking), (60.0, 1.0, Network.allow("example.com", ask=lambda *_: None)))
    )
    assert one == other
    assert one.to_json() == other.to_json()
    assert hash(one) == hash(other)
    spec = environment(tmp_path).spec
    assert len({spec, SandboxSpec.from_data(json.loads(spec.to_json()))}) == 1


def test_a_time_to_wait_for_an_orchestrator_is_one_that_a_clock_can_count() -> None:
    with pytest.raises(SandboxError, match="keep_seconds=a number of 1329 bits is not a time") as caught:
        DockerEnvironment(keep=True, keep_seconds=10**400)
    assert caught.value.code is ErrorCode.invalid_configuration


def test_a_label_chooses_no_folder_file_or_address_of_this_host(tmp_path: Path) -> None:
    """Anybody who may create a container writes labels."""
    spec = replace(environment(tmp_path).spec, name="work", keep=True)
    fields_ = {
        "version": "9.9", "protocol": PROTOCOL, "token": "00" * 32, "seconds": 60, "spec": spec.to_data(), "names": [],
        "disk": {"kind": "memory", "places": [], "watched": [], "why": ""},
    }  # fmt: skip
    ident = "gamebox-0123456789abcdef"
    listed = {"Id": "a" * 64, "Names": [f"/{ident}"], "Labels": {"dev.gamebox.sandbox": ident, KEEP_LABEL: json.dumps(fields_)}}
    found = kept.read_kept(listed).spec
    assert (found.workspace, found.ca_bundle, found.cache, found.services, found.pull) == (None, None, None, (), False)
    assert found.network == Network.none()
    fields_["spec"] = {"of_tomorrow": 1}
    listed["Labels"] = {"dev.gamebox.sandbox": ident, KEEP_LABEL: json.dumps(fields_)}
    with pytest.raises(SandboxError, match=r"another version of gamebox \(9\.9; "):
        kept.read_kept(listed)


def test_what_stays_with_a_kept_sandbox(tmp_path: Path) -> None:
    written = environment(tmp_path).spec.without_host()
    assert (written.env, written.beside, written.read_roots) == (("PASSWORD",), ("ca_bundle", "cache"), ("/etc",))
    assert HostParts({"env": {}, "ca_bundle": None, "cache": None}).arguments(written)["image"] == "example:1"


@pytest.fixture
def parsed() -> tuple[typer.Typer, dict[str, Any]]:
    app, seen = typer.Typer(), {}

    @app.command()
    @with_sandbox_options(without=OF_KEPT, defaults={"image": None})
    def make(ctx: typer.Context, **asked: Any) -> None:
        seen.update(asked)

    return app, seen


def test_a_command_has_the_options_of_the_spec(parsed: tuple[typer.Typer, dict[str, Any]]) -> None:
    app, seen = parsed
    args = ["--disk", "1g", "--allow", "a.example.com", "--allow", "b.example.com", "-e", "A=b", "--pull", "--cpus", "1.5"]
    assert CliRunner().invoke(app, args).exit_code == 0
    assert set(seen) == set(FLAGS) - OF_KEPT
    assert (seen["disk"], seen["allow"], seen["env"], seen["pull"], seen["cpus"], seen["image"]) == (
        "1g", ["a.example.com", "b.example.com"], ["A=b"], True, 1.5, None,
    )  # fmt: skip


def test_options_reach_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_text("")
    monkeypatch.setenv("THE_KEY", SECRET)
    env = sandbox_of(
        {
            "image": "example:1", "disk": "1g", "memory": "1g", "network": "open", "allow": ["10.0.0.1"], "env": ["A=b"],
            "ca_bundle": tmp_path / "ca.pem", "profile": "root", "runtime": "runsc", "service": ["llm=https://api.example.com"],
            "service_header": ["llm:X-Api-Key=THE_KEY"], "cache": tmp_path / "cache", "read_root": ["/etc"], "pull": True,
        }
    )  # fmt: skip
    assert isinstance(env, DockerEnvironment)
    spec = env.spec
    assert (spec.image, spec.profile, spec.runtime, spec.pull, spec.read_roots) == ("example:1", "root", "runsc", True, ("/etc",))
    assert (spec.limits.disk_bytes, spec.limits.memory_bytes, spec.env) == (1 << 30, 1 << 30, ("A",))
    assert spec.network == Network.open("10.0.0.1")
    assert spec.ca_bundle == str(tmp_path / "ca.pem")
    assert [name for name, _ in spec.services] == ["llm"]


def test_options_of_an_agents_sandbox_come_back_from_its_log_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"task": "t", "disk": "1g", "env": (f"PASSWORD={SECRET}",), "profile": "default", "cache": None, "allow": ()}
    options = AgentOptions.of_command(given)
    data = options.to_data()
    assert (data["disk"], data["env"]) == ("1g", ["PASSWORD"])
    assert SECRET not in json.dumps(data)
    again = AgentOptions.of_data(data, "r")
    assert dict(again.sandbox) == {"disk": "1g", "env": ("PASSWORD",)}
    assert again.unasked_for({}) == ["--disk 1g", "--env PASSWORD"]
    for wrong in ({"disk": 7}, {"env": "PASSWORD"}, {"runtime": ["x"]}):
        with pytest.raises(SandboxError) as caught:
            AgentOptions.of_data({**data, **wrong}, "r")
        assert caught.value.code is AgentErrorCode.run_not_resumable


def test_a_run_that_named_no_agent_keeps_the_one_that_was_the_default_then() -> None:
    data = AgentOptions(task="t").to_data()
    assert AgentOptions.of_data(data, "r", "codeact").agent == "codeact"
    assert AgentOptions.of_data({**data, "agent": "coder"}, "r", "codeact").agent == "coder"
    with pytest.raises(SandboxError) as caught:
        AgentOptions.of_data(data, "r", "../codeact")
    assert caught.value.code is AgentErrorCode.run_not_resumable


def test_the_marker_of_the_plugin_lists_the_options_of_the_spec() -> None:
    assert f"({', '.join(('*', *plugin.NAMES))})" in gamebox_pytest.MARKER
