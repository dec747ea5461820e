"""Files of package indexes: real wheels for pip, tarballs for npm, packages for apt; a Site serves them."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import json
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path


def wheel_of(name: str) -> tuple[str, bytes]:
    """File name and bytes of the wheel that an installed distribution came from, packed again from its files."""
    found = importlib.metadata.distribution(name)
    described = found.read_text("WHEEL") or ""
    tags = re.findall(
        r"^Tag: (\S+?)-(\S+)$", described, re.MULTILINE
    )  # py2-none-any and py3-none-any: py2.py3-none-any
    tag = f"{'.'.join(python for python, _ in tags)}-{tags[0][1]}"
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in found.files or []:
            if (
                ".." in path.parts
                or path.suffix == ".pyc"
                or path.name in ("INSTALLER", "REQUESTED", "direct_url.json")
            ):
                continue  # made by whoever installed it
            archive.write(str(path.locate()), str(path))
    return f"{re.sub('[-_.]+', '_', found.name)}-{found.version}-{tag}.whl", target.getvalue()


def python_index(names: list[str], files_url: str) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """(pages, files) of a PEP 503 index of installed distributions; pages point to the files at ``files_url``."""
    pages: dict[str, bytes] = {}
    files: dict[str, bytes] = {}
    for name in names:
        file_name, content = wheel_of(name)
        files[f"/files/{file_name}"] = content
        digest = hashlib.sha256(content).hexdigest()
        link = f'<a href="{files_url}/files/{file_name}#sha256={digest}">{file_name}</a>'
        normal = re.sub("[-_.]+", "-", name).lower()
        pages[f"/simple/{normal}/"] = f"<!DOCTYPE html><html><body>{link}</body></html>".encode()
    return pages, files


def npm_package(name: str, version: str, files: Mapping[str, str], registry_url: str) -> dict[str, bytes]:
    """What a registry has of one package: its document and its tarball."""
    described = {"name": name, "version": version, "main": "index.js"}
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for path, text in {"package.json": json.dumps(described), **files}.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size, member.mode = len(text.encode()), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    content = target.getvalue()
    dist = {
        "tarball": f"{registry_url}/{name}/-/{name}-{version}.tgz",
        "integrity": "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode(),
        "shasum": hashlib.sha1(content).hexdigest(),
    }
    document = {
        "name": name, "dist-tags": {"latest": version}, "versions": {version: {**described, "dist": dist}},
    }  # fmt: skip
    return {f"/{name}": json.dumps(document).encode(), f"/{name}/-/{name}-{version}.tgz": content}


def debian_repository(folder: Path, name: str, version: str, program: str) -> dict[str, bytes]:
    """A flat repository of one real package that installs ``program`` (a script) as /usr/bin/NAME. Needs dpkg-deb."""
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / f"usr/bin/{name}").write_text(program)
    (tree / f"usr/bin/{name}").chmod(0o755)
    control = (
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Tests <tests@example.com>\n"
        "Description: a package of the tests\n"
    )
    (tree / "DEBIAN/control").write_text(control)
    made = folder / f"{name}_{version}_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, made], check=True, capture_output=True)
    content = made.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    listed = f"{control}Filename: ./{made.name}\nSize: {len(content)}\nSHA256: {digest}\n\n".encode()
    hashed = f" {hashlib.sha256(listed).hexdigest()} {len(listed)} Packages"
    release = f"Suite: tests\nDate: Fri, 01 Jan 2021 00:00:00 UTC\nSHA256:\n{hashed}\n"
    return {"/Packages": listed, "/Release": release.encode(), f"/{made.name}": content}


def go_proxy(module: str, version: str, source: str) -> dict[str, bytes]:
    """What a Go module proxy has of one module: its versions, and of one version the facts, the go.mod and the archive."""
    manifest = f"module {module}\n\ngo 1.18\n"
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in {"go.mod": manifest, "note.go": source}.items():
            archive.writestr(f"{module}@{version}/{path}", text)
    base = f"/{module}/@v"
    return {
        f"{base}/list": f"{version}\n".encode(),
        f"{base}/{version}.info": json.dumps({"Version": version, "Time": "2024-01-01T00:00:00Z"}).encode(),
        f"{base}/{version}.mod": manifest.encode(),
        f"{base}/{version}.zip": target.getvalue(),
    }


def cargo_registry(name: str, version: str, source: str, registry_url: str) -> dict[str, bytes]:
    """What a sparse registry has of one crate: its settings, the crate's page and its archive."""
    manifest = f'[package]\nname = "{name}"\nversion = "{version}"\nedition = "2021"\n'
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for path, text in {"Cargo.toml": manifest, "src/lib.rs": source}.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size, member.mode = len(text.encode()), 0o644
            archive.addfile(member, io.BytesIO(text.encode()))
    content = target.getvalue()
    page = {
        "name": name, "vers": version, "deps": [], "cksum": hashlib.sha256(content).hexdigest(), "features": {}, "yanked": False,
    }  # fmt: skip
    return {
        "/config.json": json.dumps({"dl": f"{registry_url}/dl"}).encode(),
        f"/{name[:2]}/{name[2:4]}/{name}": json.dumps(page).encode() + b"\n",
        f"/dl/{name}/{version}/download": content,
    }
