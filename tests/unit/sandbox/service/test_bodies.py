"""What a tenant may ask for is listed: a field of the core's spec is refused over HTTP until it is listed there, too."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from sandbox.docker.spec import SandboxSpec
from sandbox.limits import Limits
from sandbox.operations import OPERATIONS
from sandbox.service.clock import iso
from sandbox.service.http.bodies import CreateKey, CreateSandbox, checked_arguments, read_body
from sandbox.service.http.limits import LIMITS
from sandbox.service.http.payloads.json_text import read_json
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.settings import Settings, read_settings

# Fields of the core's spec that are not for tenants, and why.
REFUSED = {
    "pull": "images are the operator's",
    "workspace": "a path of the host",
    "ca_bundle": "a path of the host",
    "keep": "all sandboxes of a service are kept",
    "keep_seconds": "that is the time to live",
    "name": "the id is its name",
    "beside": "what the host alone has",
}
REFUSED_LIMITS = {"lease_seconds": "the service keeps the lease", "network_questions": "nobody is asked"}


def asked(**fields: Any) -> CreateSandbox:
    return read_body(CreateSandbox, json.dumps(fields).encode())


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings({"data": tmp_path})


def test_every_field_of_a_spec_is_listed_or_refused() -> None:
    fields = {field.name for field in dataclasses.fields(SandboxSpec)}
    listed = set(CreateSandbox.model_fields)
    assert fields - listed == set(REFUSED)
    assert listed - fields == {"time_to_live_seconds", "idle_seconds", "metadata", "secrets"}
    for name in REFUSED:
        with pytest.raises(Problem) as caught:
            read_body(CreateSandbox, b'{"%s": null}' % name.encode())
        assert caught.value.code is ProblemCode.invalid_body
        assert name in caught.value.detail


def test_a_field_that_the_core_gains_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    mount = ("mount", str, dataclasses.field(default=""))
    made = dataclasses.make_dataclass("Spec", [mount], bases=(SandboxSpec,), kw_only=True, frozen=True)
    monkeypatch.setattr("sandbox.service.http.bodies.SandboxSpec", made)
    with pytest.raises(Problem):
        read_body(CreateSandbox, b'{"mount": "/"}')


def test_every_limit_is_listed_or_refused(settings: Settings) -> None:
    assert {field.name for field in dataclasses.fields(Limits)} - set(LIMITS) == set(REFUSED_LIMITS)
    for name in REFUSED_LIMITS:
        with pytest.raises(Problem):
            asked(limits={name: 1}).spec(settings, settings.ceiling)


def test_a_spec_has_what_was_asked_for_and_is_kept(settings: Settings) -> None:
    body = read_body(
        CreateSandbox,
        b'{"image": "gamebox/node", "limits": {"cpus": 1}, "env": {"A": "b"}, "idle_seconds": 5, "time_to_live_seconds": 60,'
        b' "network": {"mode": "allow", "rules": ["example.com"]}, "read_roots": ["/etc"]}',
    )
    spec = body.spec(settings, settings.ceiling)
    assert (spec.image, spec.limits.cpus, spec.env, spec.read_roots) == ("gamebox/node", 1.0, ("A",), ("/etc",))
    assert (spec.limits.idle_seconds, spec.limits.lifetime_seconds) == (5.0, 60.0)
    assert (spec.keep, spec.keep_seconds) == (True, settings.most_time_to_live_seconds)
    assert (spec.workspace, spec.pull) == (None, False)
    assert [rule.private for rule in spec.network.rules] == [False]


@pytest.mark.parametrize("image", ["debian", "gamebox", "sha256:0", "gamebox:5000/x", "other/gamebox/base", ""])
def test_images_are_those_that_the_operator_allows(settings: Settings, image: str) -> None:
    with pytest.raises(Problem):
        asked(image=image).spec(settings, settings.ceiling)


@pytest.mark.parametrize("data", [b"{", b"[1]", b'"text"', b"null", b"NaN", b'{"a": -Infinity}', b"[" * 100_000, b"\xff"])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(Problem) as caught:
        read_json(data)
    assert caught.value.code is ProblemCode.invalid_json


def test_arguments_that_are_only_for_a_host_are_listed() -> None:
    """One that an operation gains is refused over HTTP until somebody has thought of it."""
    assert {name for kind in OPERATIONS.values() for name in kind.host_only()} == {"user", "needs_session"}
    assert checked_arguments("run", {"command": "true", "user": "root"}) is None
    assert checked_arguments("export_patch", {"since": "m", "to": "/x"}) == "to"


def test_services_and_secrets_of_a_body_are_named_and_have_no_values(settings: Settings) -> None:
    header = {"secret": "llm-key", "prefix": "Bearer "}
    body = asked(
        secrets={"TOKEN": "deploy", "OTHER": {"secret": "deploy", "always": False}},
        services=[{"name": "llm", "upstream": "https://api.example.com", "headers": {"Authorization": header}, "paths": ["/v1/*"]}],
    )
    spec = body.spec(settings, settings.ceiling)
    assert spec.beside == ("services.llm.headers.Authorization",)
    assert spec.from_data(spec.to_data()) == spec
    assert body.secret_names() == {"deploy", "llm-key"}
    assert {name: each.always for name, each in body.secret_variables().items()} == {"TOKEN": True, "OTHER": False}
    with pytest.raises(Problem, match="env and secrets both have 'TOKEN'"):
        asked(secrets={"TOKEN": "deploy"}, env={"TOKEN": "x"}).spec(settings, settings.ceiling)
    for refused in ({"ca_bundle": "/etc/passwd"}, {"headers": {"X": "in the clear"}}, {"kind": "SideService"}):
        with pytest.raises(Problem):
            asked(services=[{"name": "llm", "upstream": "https://api.example.com", **refused}])


def test_the_package_cache_is_the_operators(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        asked(cache=True).spec(settings, settings.ceiling)
    assert caught.value.code is ProblemCode.forbidden_by_operator
    own = read_settings({"data": tmp_path, "cache_pypi": "https://user:password@index.example.com/simple/"})
    assert asked(cache=True).spec(own, own.ceiling).cache is None, "what is written down has no credentials"
    assert "password" not in repr(own)
    with pytest.raises(Problem):
        asked(cache={"directory": "/", "pypi": "https://mine.example"})


def test_a_key_expires_at_a_time_that_can_be_written() -> None:
    with pytest.raises(Problem):
        read_body(CreateKey, b'{"expires_seconds": 1e300}')
    assert iso(1e300) == "9999-12-31T23:59:59.000Z"
