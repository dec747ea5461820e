"""What a caller asks for in words is refused if it is more than is allowed; what it leaves out is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sandbox.docker.spec import SandboxSpec
from sandbox.limits import Limits
from sandbox.network.policy import Network
from sandbox.network.rules import Rule
from sandbox.network.services.service import Service
from sandbox.service.clock import now
from sandbox.service.fleet.admission.admission import narrowed_record
from sandbox.service.http.bodies import CreateSandbox, read_body
from sandbox.service.http.limits import BOUNDED
from sandbox.service.http.problems import Problem, ProblemCode
from sandbox.service.settings import Settings, read_settings
from sandbox.service.store.tables.sandboxes import SandboxRecord
from sandbox.service.tenants import ceiling as under
from sandbox.service.tenants.rules import Ceiling

LOW = Ceiling(
    images=("gamebox/base",),
    profiles=("default",),
    runtimes=("runsc", "default"),
    largest={"memory_bytes": 1 << 30, "cpus": 0.5, "disk_bytes": 1 << 30, "idle_seconds": 60, "network_bytes": 1000},
    most_time_to_live_seconds=600,
    network="named",
    hosts=("*.example.com:443", "example.org", "198.51.100.0/24:*"),
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return read_settings({"data": tmp_path_factory.mktemp("data")})


def asked(settings: Settings, ceiling: Ceiling = LOW, **fields: Any) -> SandboxSpec:
    return read_body(CreateSandbox, json.dumps(fields).encode()).spec(settings, ceiling)


def forbidden(call: Any) -> str:
    with pytest.raises(Problem) as caught:
        call()
    assert (caught.value.status, caught.value.code) == (403, ProblemCode.forbidden_by_operator)
    assert caught.value.hint
    return caught.value.detail


def test_actions_at_once_which_cost_threads_of_the_service_are_bounded_unless_the_operator_says_so(settings: Settings) -> None:
    assert "concurrent_actions = 65" in forbidden(lambda: asked(settings, Ceiling(), limits={"concurrent_actions": 65}))
    assert asked(settings, Ceiling(), limits={"concurrent_actions": 64}).limits.concurrent_actions == 64
    more = Ceiling(largest={"concurrent_actions": 100})
    assert asked(settings, more, limits={"concurrent_actions": 100}).limits.concurrent_actions == 100


def test_what_was_left_out_is_cut(settings: Settings) -> None:
    spec = asked(settings)
    assert (spec.limits.memory_bytes, spec.limits.cpus, spec.limits.disk_bytes) == (1 << 30, 0.5, 1 << 30)
    assert (spec.limits.idle_seconds, spec.limits.lifetime_seconds, spec.limits.network_bytes) == (60, 600, 1000)
    assert (spec.runtime, spec.limits.pids) == ("runsc", Limits().pids)


def test_what_is_within_it_is_given(settings: Settings) -> None:
    limits = {"memory_bytes": 1 << 28, "cpus": 0.25}
    network = {"mode": "allow", "rules": ["a.example.com:443", "*.b.example.com:443", "example.org:80"]}
    spec = asked(settings, limits=limits, network=network, runtime="default", time_to_live_seconds=600, idle_seconds=10)
    assert (spec.limits.memory_bytes, spec.limits.cpus, spec.limits.idle_seconds) == (1 << 28, 0.25, 10)
    assert (len(spec.network.rules), spec.runtime) == (3, None)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"image": "gamebox/node"}, "gamebox/node"),
        ({"image": "sha256:" + "0" * 64}, "sha256"),
        ({"image": "0123456789ab"}, "0123456789ab"),
        ({"profile": "root"}, "root"),
        ({"runtime": "kata"}, "kata"),
        ({"limits": {"memory_bytes": (1 << 30) + 1}}, "memory_bytes"),
        ({"limits": {"network_bytes": None}}, "network_bytes = null"),
        ({"limits": {"idle_seconds": 61}}, "idle_seconds"),
        ({"idle_seconds": 61}, "idle_seconds"),
        ({"time_to_live_seconds": 601}, "601"),
        ({"limits": {"lifetime_seconds": 601}}, "601"),
        ({"network": {"mode": "open"}}, "A network without rules"),
        ({"network": {"mode": "allow", "rules": ["example.com:443"]}}, "example.com:443"),
        ({"network": {"mode": "allow", "rules": ["a.example.com"]}}, "a.example.com"),
        ({"network": {"mode": "allow", "rules": ["a.example.com:443", "*"]}}, "'*'"),
        ({"services": [{"name": "llm", "upstream": "https://other.example/"}]}, "other.example:443"),
    ],
)
def test_what_is_asked_for_in_words_is_refused_if_it_is_more(settings: Settings, fields: dict[str, Any], named: str) -> None:
    assert named in forbidden(lambda: asked(settings, **fields))


def test_an_image_is_never_named_by_its_id(settings: Settings) -> None:
    every = Ceiling(images=("*",))
    assert asked(settings, every, image="debian").image == "debian"
    named = Ceiling(images=("gamebox/*", "cafe", f"debian@sha256:{'b' * 64}"))
    digest = f"gamebox/base@sha256:{'a' * 64}"
    for ident in ("sha256:" + "a" * 64, "a" * 64, "0123456789ab", "beef", digest, f"gamebox/base:1@sha256:{'a' * 64}"):
        forbidden(lambda ident=ident: asked(settings, every, image=ident))
        forbidden(lambda ident=ident: asked(settings, named, image=ident))
    assert asked(settings, every, image="beef:latest").image == "beef:latest"
    for listed in named.images[1:]:  # the operator's own words
        assert asked(settings, named, image=listed).image == listed


@pytest.mark.parametrize(
    ("pattern", "images", "others"),
    [
        ("gamebox/*", "gamebox/base gamebox/node:1", "gamebox gamebox/a/b evil/gamebox/base evil.example/gamebox/base GAMEBOX/b"),
        ("python:*", "python:3.12", "python python:5000/evil/image python-evil:1"),
        ("*", "debian a/b evil.example.com:5000/x", ""),
        ("*/base", "gamebox/base evil.example.com/base", "a/b/base base"),
        ("own.example.com/**", "own.example.com/a own.example.com/a/b:1", "own.example.com own.example.com.evil/a"),
        ("own.example.com/*/py", "own.example.com/a/py", "own.example.com/a/b/py own.example.com/py"),
    ],
)
def test_a_pattern_leads_into_no_registry_of_others(settings: Settings, pattern: str, images: str, others: str) -> None:
    ceiling = Ceiling(images=(pattern,))
    for image in images.split():
        assert asked(settings, ceiling, image=image).image == image
    for image in others.split():
        forbidden(lambda image=image: asked(settings, ceiling, image=image))


def test_no_network_is_no_service_either(settings: Settings) -> None:
    none = Ceiling(network="none")
    service = {"name": "llm", "upstream": "https://api.example.com/"}
    forbidden(lambda: asked(settings, none, network={"mode": "allow", "rules": ["example.com"]}))
    forbidden(lambda: asked(settings, none, services=[service]))
    assert asked(settings, LOW, services=[{**service, "upstream": "https://a.example.com/v1"}]).services


@pytest.mark.parametrize(
    ("outer", "inner", "within"),
    [
        ("example.com", "example.com", True),
        ("example.com", "EXAMPLE.com.:443", True),
        ("example.com", "example.com:8080", False),
        ("example.com", "*.example.com", False),
        ("*.example.com", "example.com", False),
        ("*.example.com", "*.a.example.com", True),
        ("*.example.com", "*.example.com", True),
        ("*.example.com", "badexample.com", False),
        ("*", "example.com", True),
        ("*", "127.0.0.1", False),
        ("*:*", "*", True),
        ("example.com", "*", False),
        ("10.0.0.0/8", "10.1.0.0/16", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "0.0.0.0/0", False),
        ("10.0.0.0/8", "2001:db8::/32", False),
        ("10.0.0.0/8:5432", "10.1.2.3", False),
    ],
)
def test_a_rule_is_within_another_one_if_that_opens_every_host_and_port_of_it(outer: str, inner: str, within: bool) -> None:
    assert under.encloses(Rule.parse(outer), Rule.parse(inner)) is within


@given(st.sampled_from(["a.example.com:443", "*.example.com", "example.org", "*", "198.51.100.7:1-65535", "10.0.0.1"]))
def test_a_network_that_was_narrowed_is_allowed(rule: str) -> None:
    for network in (Network.allow(rule), Network.open(rule), Network.none()):
        cut = under.narrowed_network(LOW, network)
        under.check_network(LOW, cut)
        assert set(cut.rules) <= set(network.rules)
        assert cut.mode in ("none", "allow")
        assert under.narrowed_network(Ceiling(network="none"), network) == Network.none()


def test_a_record_whose_ceiling_was_made_lower_is_cut_and_one_within_it_is_the_same() -> None:
    spec = SandboxSpec(network=Network.allow("a.example.com:443", "example.net"))
    ends_at = now() + 9e7
    record = SandboxRecord(
        id="a", tenant="t", ident="i", state="running", created_at=0, ends_at=ends_at, time_to_live_seconds=9e7, spec=spec.to_data()
    )
    cut = narrowed_record(LOW, record)
    assert [rule.text for rule in SandboxSpec.from_data(cut.spec).network.rules] == ["a.example.com:443"]
    assert cut.time_to_live_seconds == 600
    assert narrowed_record(LOW, cut) == cut
    assert narrowed_record(Ceiling(most_time_to_live_seconds=1e8), record) == record


def test_a_time_to_live_is_one_that_a_timer_can_have() -> None:
    assert Ceiling(most_time_to_live_seconds=1e8).most_time_to_live_seconds == Limits(timeout_seconds=1e8).timeout_seconds
    for seconds in (1.1e8, 1e308):
        with pytest.raises(ValidationError, match="less than or equal to 100000000"):
            Ceiling(most_time_to_live_seconds=seconds)


def test_a_fork_is_cut_and_what_is_there_already_is_refused() -> None:
    spec = SandboxSpec(image="gamebox/base", runtime="runsc", limits=Limits(memory_bytes=2 << 30, cpus=1))
    assert (under.narrowed(LOW, spec).limits.memory_bytes, under.narrowed(LOW, spec).limits.cpus) == (1 << 30, 0.5)
    assert "memory_bytes" in forbidden(lambda: under.check_running(LOW, spec))
    under.check_running(LOW, under.narrowed(LOW, spec))
    for other in ({"image": "gamebox/node"}, {"profile": "root"}, {"runtime": "kata"}):
        changed = SandboxSpec(**{"image": "gamebox/base", "runtime": "runsc", **other})  # type: ignore[arg-type]
        forbidden(lambda changed=changed: under.narrowed(LOW, changed))
        forbidden(lambda changed=changed: under.check_running(LOW, changed))
    service = Service("llm", "https://other.example/")
    forbidden(lambda: under.check_running(LOW, SandboxSpec(runtime="runsc", services=(("llm", service),))))


def test_every_limit_that_may_be_bounded_is_one() -> None:
    assert set(BOUNDED) <= set(Limits.__dataclass_fields__)
    for name in BOUNDED:
        Ceiling(largest={name: 1})


@pytest.mark.parametrize(
    "fields",
    [
        {"largest": {"disk": 1}},
        {"largest": {"memory_bytes": 0}},
        {"images": []},
        {"hosts": ["http://example.com"]},
        {"open_networks": ["example.com"]},
        {"network": "bridge"},
        {"other": 1},
    ],
)
def test_a_ceiling_that_cannot_hold_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Ceiling.model_validate(fields)


def test_the_settings_are_the_ceiling_of_tenants_that_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "service.toml").write_text('images = ["a/*"]\n[largest]\ncpus = 2\n[quota]\nsandboxes = 3\nmemory_bytes = 5\n')
    monkeypatch.setenv("GAMEBOX_SERVICE_QUOTA__SANDBOXES", "7")
    found = read_settings({"data": tmp_path})
    assert (found.ceiling.images, found.ceiling.largest, found.ceiling.network) == (("a/*",), {"cpus": 2}, "public")
    assert (found.quota.sandboxes, found.quota.memory_bytes, found.quota.creations_waiting) == (7, 5, 64)
