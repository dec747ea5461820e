"""Recipes: what an image is made of, and when that changes."""

from __future__ import annotations

import os
import re
import tarfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from sandbox.docker.images import images
from sandbox.docker.images.recipes import BUNDLED_DISTRIBUTIONS, Recipe, find_recipe, images_folder, read_files
from sandbox.docker.images.runtime import STALE_SECONDS, choose_stale
from sandbox.errors import ErrorCode, SandboxError
from sandbox.packages.apt_sources import host_sources

PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def known(name: str, ca_bundle: Path | None = None) -> Recipe:
    found = find_recipe(name, ca_bundle)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "name",
    ["debian:bookworm-slim", "gamebox/base:old", "gamebox/none-such", "gamebox/../base", "other/base", "base", ""],
)
def test_only_our_own_latest_images_have_a_recipe(name: str) -> None:
    assert find_recipe(name) is None


def test_every_folder_is_a_recipe() -> None:
    names = {folder.name for folder in images_folder().iterdir() if folder.is_dir()}
    assert {"base", "runtime"} <= names
    for name in names:
        assert known(f"gamebox/{name}").parent == known(f"gamebox/{name}:latest").parent != ""


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """Editors leave links to nowhere beside what is edited."""
    for path in ("b.py", "a/x.py", "a/__pycache__/x.pyc", "a.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / ".#b.py").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.py")
    assert list(read_files(tmp_path).items()) == [(path, path.encode()) for path in ("a.txt", "a/x.py", "b.py")]
    assert list(read_files(tmp_path, ".py")) == ["a/x.py", "b.py"]


def test_runtime_stands_on_base_and_base_on_a_public_image() -> None:
    assert known("gamebox/runtime").parent == "gamebox/base"
    assert find_recipe(known("gamebox/base").parent) is None


def test_digest_changes_with_every_file_and_with_the_parent() -> None:
    recipe = known("gamebox/runtime")
    digests = {
        recipe.digest("a"),
        recipe.digest("b"),
        replace(recipe, files={**recipe.files, "new": b""}).digest("a"),
    }
    for path in recipe.files:
        digests.add(replace(recipe, files={**recipe.files, path: recipe.files[path] + b"#"}).digest("a"))
    assert len(digests) == 3 + len(recipe.files)


def test_digest_tells_files_apart_that_join_to_the_same_bytes() -> None:
    first = Recipe("gamebox/x", "", {"a": b"1", "b": b"2"}, {})
    assert first.digest("") != replace(first, files={"a": b"1\0b\x001\x002"}).digest("")


def test_context_holds_all_files_and_is_the_same_every_time() -> None:
    recipe = known("gamebox/base")
    with tarfile.open(fileobj=recipe.context()) as archive:
        assert set(archive.getnames()) == {*recipe.files, *recipe.optional}
    assert recipe.context().getvalue() == known("gamebox/base").context().getvalue()


def test_a_named_ca_bundle_is_part_of_the_image_and_the_hosts_own_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text(PEM)
    monkeypatch.delenv("GAMEBOX_CA_BUNDLE", raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    plain = known("gamebox/base")
    assert plain.optional["ca/host.crt"] == PEM.encode()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    assert known("gamebox/base").digest("") == plain.digest("")
    monkeypatch.setenv("GAMEBOX_CA_BUNDLE", str(bundle))
    assert known("gamebox/base").files["ca/host.crt"] == PEM.encode()
    assert known("gamebox/base").digest("") == known("gamebox/base", bundle).digest("") != plain.digest("")


def test_a_named_ca_bundle_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SandboxError) as caught:
        find_recipe("gamebox/base", tmp_path / "none.pem")
    assert caught.value.code is ErrorCode.invalid_configuration
    assert str(tmp_path / "none.pem") in caught.value.message


def test_everything_that_reads_web_pages_travels_with_all_it_needs() -> None:
    for name in BUNDLED_DISTRIBUTIONS:
        for needed in metadata.requires(name) or []:
            if "extra ==" not in needed:
                found = re.match(r"[A-Za-z0-9_.-]+", needed)
                assert found is not None
                assert found.group(0).replace("_", "-").lower() in BUNDLED_DISTRIBUTIONS


def test_the_travelling_files_are_python_and_free_of_tests() -> None:
    site = [path for path in known("gamebox/runtime").files if path.startswith("site/")]
    assert {"site/bs4/__init__.py", "site/markdownify/__init__.py", "site/six.py", "site/typing_extensions.py"} <= set(
        site
    )
    assert all(path.endswith(".py") and "/tests/" not in path and ".." not in path for path in site)


def test_host_sources_of_the_release_only(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://mirror.example.com/debian bookworm main\n"
        "deb http://mirror.example.com/debian bookworm main\n"
        "deb-src http://mirror.example.com/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://mirror.example.com/debian bookworm-updates main\n"
        "deb http://tools.example.com/apt tools-bookworm main\n"
    )
    stanza = "Types: deb\nURIs: http://mirror.example.com/debian\nSuites: {}\nComponents: main\n"
    wanted, other, source = (
        stanza.format("bookworm bookworm-updates"),
        stanza.format("nodistro"),
        stanza.format("bookworm"),
    )
    (parts / "debian.sources").write_text(f"{wanted}\n{other}\n{source.replace('Types: deb', 'Types: deb-src')}")
    (parts / "off.sources").write_text("Enabled: no\n" + stanza.format("bookworm"))
    found = host_sources("bookworm", tmp_path)
    assert found[".list"].splitlines() == [
        "deb http://mirror.example.com/debian bookworm main",
        "deb [arch=amd64 signed-by=/k.gpg] http://mirror.example.com/debian bookworm-updates main",
    ]
    assert found[".sources"].strip() == wanted.strip()


def test_host_without_sources(tmp_path: Path) -> None:
    assert not any(host_sources("bookworm", tmp_path).values())


def test_stale_runtimes_are_bounded_in_number_and_age() -> None:
    """UX 1: 105 volumes (1.5 GB) were left within an hour, for only those of a day went."""
    ages = {"young": 5.0, "hour": 3600.0, "hours": 7200.0, "day": STALE_SECONDS + 1}
    assert choose_stale(ages, 10) == ["day"]
    assert choose_stale(ages, 2) == ["hours", "day"]
    assert choose_stale(ages, 1) == ["hour", "hours", "day"]
    assert choose_stale(ages, 0) == ["hour", "hours", "day"]  # what is young may be about to be used


def test_the_runtime_has_a_tag_of_its_content() -> None:
    assert known("gamebox/runtime").by_content
    assert not known("gamebox/base").by_content
    assert known("gamebox/base").reference == "gamebox/base:latest"


def test_uv_in_the_image_is_the_one_of_the_lock() -> None:
    def uv(path: str) -> set[str]:
        found = re.search(
            r"^uv==\S+(?: \\\n +--hash=\S+)+", (Path(__file__).parents[4] / path).read_text(), re.MULTILINE
        )
        assert found is not None
        return set(found[0].replace("\\", "").split())

    assert uv("images/base/requirements.txt") == uv("requirements.lock")


def test_only_set_up_makes_a_base_where_no_registry_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment says which command does, and installs nothing itself."""
    client: Any = type("Client", (), {"api": type("Api", (), {"prune_images": staticmethod(lambda **_: None)})})
    bases: list[str] = []

    def build_on(_client: object, _recipe: object, _wanted: str, base: str, _report: object) -> str:
        bases.append(base)
        return "id"

    monkeypatch.setattr(images, "_inspect", lambda *_: None)
    monkeypatch.setattr(images, "_pull", lambda *_: "no registry answers")
    monkeypatch.setattr(images, "_build_on", build_on)
    with pytest.raises(SandboxError) as caught:
        images.ensure_image(client, "gamebox/base", report=print)
    assert caught.value.code is ErrorCode.image_build_failed
    assert "`gamebox setup`" in caught.value.hint
    asked: list[str] = []

    def make_base(_client: object, packages: list[str], _report: object) -> str:
        asked.extend(packages)
        return "gamebox/bootstrap:x"

    assert images.ensure_image(client, "gamebox/base", report=print, make_base=make_base) == "id"  # type: ignore[arg-type]
    assert bases == ["gamebox/bootstrap:x"]
    assert "git" in asked
