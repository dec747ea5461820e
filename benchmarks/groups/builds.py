"""Builds of images in sandboxes, beside ``docker build`` of the same steps: time, cache and size, and a start of what was built."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker

from benchmarks.measuring import Options, Row, milliseconds, take_turns
from sandbox import DockerEnvironment
from sandbox.docker.builds.archives import ArchiveStore
from sandbox.docker.builds.build import Build, BuiltImage
from sandbox.docker.builds.layers import ImageStore
from sandbox.docker.builds.steps import Copy, Plan, Run, Workdir
from sandbox.docker.local_images.setups import remove_setup, set_up

MIB = 1 << 20
FILES = 200
COPIED_BYTES = 20 * MIB
FIRST, SECOND = "mkdir -p /srv/a && echo one > /srv/a/1", "echo two > /srv/a/2"
DOCKERFILE = f"RUN {FIRST}\nRUN {SECOND}\nCOPY data /srv/data\nWORKDIR /srv\n"


def builds(options: Options) -> Iterator[Row]:
    """Measure three layers, one of them 200 files with 20 MiB: all made, all from the cache; then starts."""
    owner = f"benchmark-{secrets.token_hex(8)}"
    store, name = ImageStore(owner), f"gamebox-benchmark/{secrets.token_hex(8)}"
    client = docker.from_env()
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield from _builds(options, client, Path(folder), owner, name)
    finally:
        store.remove_all()
        with contextlib.suppress(docker.errors.NotFound):
            client.api.remove_image(name, force=True)
        client.api.prune_images(filters={"dangling": True, "label": f"dev.gamebox.benchmark={owner}"})
        client.close()


def _builds(options: Options, client: docker.DockerClient, folder: Path, owner: str, name: str) -> Iterator[Row]:
    context = _context(options.image)
    archives = ArchiveStore(folder / "archives", most_bytes=64 * MIB)
    archive = archives.put([context])
    steps = (Run(FIRST), Run(SECOND), Copy(archive, "data", "/srv/data"), Workdir("/srv"))
    made: list[BuiltImage] = []

    def ours(force: bool) -> float:
        plan = Plan(base=options.image, steps=steps, force=force)
        return milliseconds(lambda: made.append(Build(plan, owner=owner, name="built", archives=archives).run()))

    def docker_build(force: bool) -> float:
        labels = {"dev.gamebox.benchmark": owner}

        def call() -> None:
            for event in client.api.build(
                fileobj=io.BytesIO(context), custom_context=True, tag=name, rm=True, nocache=force, labels=labels, decode=True
            ):
                if "error" in event:
                    raise RuntimeError(event["error"])

        return milliseconds(call)

    forced, cached = "docker build --no-cache", "docker build, all in its cache"
    turns = take_turns(
        {
            forced: lambda: docker_build(True), "build, every step forced": lambda: ours(True),
            cached: lambda: docker_build(False), "build, all in the cache": lambda: ours(False),
        },
        options.rounds(20),
    )  # fmt: skip
    yield turns.row("build, every step forced", forced)
    yield turns.row("build, all in the cache", cached)
    base = client.api.inspect_image(options.image)["Size"]
    theirs = (client.api.inspect_image(name)["Size"] - base) / MIB
    yield Row("added to the base", {"p50": made[-1].added_bytes / MIB}, "MiB", "docker build", {"p50": theirs})

    def start(image: str) -> float:
        env = DockerEnvironment(image)
        try:
            return milliseconds(lambda: env.start().run("true").unwrap())
        finally:
            env.close(wait=True)

    reference = ImageStore(owner).reference("built")
    starts = take_turns(
        {"start of the base": lambda: start(options.image), "start of what was built": lambda: start(reference)},
        options.rounds(20),
    )
    yield starts.row("start of what was built", "start of the base", note="its home and workspace are copied from the image")
    yield from _set_up_starts(options, folder)


def _set_up_starts(options: Options, folder: Path) -> Iterator[Row]:
    """Measure what a set-up adds to a start: finding it, and copying 1,000 files of 8 KiB into the workspace."""
    repo = folder / "repo"
    repo.mkdir()
    (repo / "requirements.txt").write_text(f"# {secrets.token_hex(8)}\n")
    command = "mkdir .venv && for n in $(seq 1000); do head -c 8192 /dev/urandom > .venv/$n; done"
    kept = set_up(command, repo, image=options.image).name

    def start(*, with_set_up: bool) -> float:
        def call() -> None:
            image = set_up(command, repo, image=options.image).image if with_set_up else options.image
            with DockerEnvironment(image, workspace=repo) as env:
                env.run("true").unwrap()

        return milliseconds(call)

    try:
        plain, filled = "start with a repository", "start with a repository and its set-up"
        turns = take_turns({plain: lambda: start(with_set_up=False), filled: lambda: start(with_set_up=True)}, options.rounds(20))
        yield turns.row(filled, plain, note="1,000 files of 8 KiB are copied from the image")
    finally:
        remove_setup(kept)


def _context(image: str) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        text = f"FROM {image}\n{DOCKERFILE}".encode()
        for path, content in {"Dockerfile": text, **{f"data/{n}": os.urandom(COPIED_BYTES // FILES) for n in range(FILES)}}.items():
            member = tarfile.TarInfo(path)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return target.getvalue()
