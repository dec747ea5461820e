"""Containers and images that carry our labels and are not ours, on the real engine."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import DockerEnvironment, ErrorCode, Limits, PackageCache, SandboxError, Service
from sandbox.docker.container.create import OWNER_LABEL
from sandbox.docker.container.disks.disk import Disk
from sandbox.docker.engine.client import connect
from sandbox.docker.engine.events import SANDBOX_LABEL
from sandbox.docker.kept import inventory, kept
from sandbox.docker.kept.labels import KEEP_LABEL, NAME_LABEL
from sandbox.docker.spec import SandboxSpec

pytestmark = pytest.mark.engine

SMALL = Limits(memory_bytes=128 << 20)


def test_a_label_names_nothing_that_is_removed() -> None:
    api = connect().api
    victim = api.create_container("gamebox/base", ["true"], name=f"victim-{secrets.token_hex(8)}")["Id"]
    volume = api.create_volume()["Name"]
    named = api.inspect_container(victim)["Name"].lstrip("/")
    forged = [
        api.create_container("gamebox/base", ["true"], name=f"gamebox-{secrets.token_hex(8)}", labels={SANDBOX_LABEL: label})["Id"]
        for label in (named, f"../volumes/{volume}", f"gamebox-{secrets.token_hex(8)}")
    ]  # fmt: skip
    try:
        found = inventory.sandboxes(connect(), every=True)
        assert not {each.id for each in found} & {victim, *forged}
        for each in forged:
            with pytest.raises(SandboxError) as unknown:
                inventory.chosen(found, [each[:12]])
            assert unknown.value.code is ErrorCode.sandbox_not_found
        assert api.inspect_container(victim)
        assert api.inspect_volume(volume)
    finally:
        for each in (victim, *forged):
            api.remove_container(each, force=True)
        api.remove_volume(volume)


@pytest.fixture
def labelled_image() -> Iterator[tuple[str, str]]:
    """An image that says to be a kept sandbox, and its name as one."""
    api = connect().api
    name = f"payroll-{secrets.token_hex(4)}"
    spec = SandboxSpec(limits=SMALL, keep=True, keep_seconds=60.0, name=name)
    said = kept.Kept("gamebox-0123456789abcdef", kept.new_token(), spec, Disk("memory", ())).labels()
    made = api.create_container("gamebox/base", ["true"], labels=said | {OWNER_LABEL: "nobody"})["Id"]
    image = f"gamebox-test-{secrets.token_hex(4)}"
    try:
        api.commit(made, image)
        yield image, name
    finally:
        api.remove_container(made, force=True)
        api.remove_image(image)


def test_an_image_does_not_make_a_sandbox_kept(labelled_image: tuple[str, str]) -> None:
    image, name = labelled_image
    with DockerEnvironment(image, limits=SMALL) as env:
        labels = connect().api.inspect_container(env.container_id)["Config"]["Labels"]
        assert (labels[KEEP_LABEL], labels[NAME_LABEL]) == ("", "")
        (found,) = [each for each in inventory.sandboxes(connect()) if each.id == env.container_id]
        assert (found.kept, found.name, found.state) == (False, None, "owned")
        for wanted in (name, env.container_id):
            with pytest.raises(SandboxError) as refused:
                DockerEnvironment.attach(wanted)
            assert refused.value.code is ErrorCode.sandbox_not_found
        assert env.run("echo mine").unwrap().output == "mine\n"
    with DockerEnvironment(image, limits=SMALL, keep=True, keep_seconds=60.0) as env:
        labels = connect().api.inspect_container(env.container_id)["Config"]["Labels"]
        assert (labels[NAME_LABEL], labels[OWNER_LABEL]) == ("", "")
    env.remove()


def test_a_container_shows_no_secret_to_who_inspects_it(tmp_path: Path) -> None:
    """Everybody who may use the engine can read labels and the rest of a container's description."""
    secret = secrets.token_hex(16)
    cache = PackageCache(tmp_path, pypi=f"https://me:{secret}@packages.example.com/simple/", npm="")
    env = DockerEnvironment(
        limits=SMALL,
        env={"PASSWORD": secret},
        services=[Service("llm", "https://api.example.com", headers={"X-Api-Key": secret})],
        cache=cache,
        keep=True,
        keep_seconds=60.0,
    )
    env.secret("TOKEN", secret)
    try:
        with env:
            assert env.run("echo $PASSWORD").unwrap().output == "***TOKEN***\n"
            shown = json.dumps(connect().api.inspect_container(env.container_id))
            kept_spec = kept.find(connect(), env.container_id).spec
        assert secret not in shown
        assert (kept_spec.env, kept_spec.beside) == (("PASSWORD",), ("cache",))
        assert secret not in kept_spec.to_json()
    finally:
        env.remove()
