"""Archives of images are hostile: what lies, contradicts itself or would not end is refused before an engine gets anything."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Callable
from typing import Any

import pytest

from sandbox import SandboxError
from sandbox.docker.images.manifests import MOST_CHARS, read_manifest
from sandbox.docker.local_images.archive_reader import ArchiveReader
from sandbox.docker.local_images.image_config import clean_config, left_out
from sandbox.docker.local_images.names import importable_name
from sandbox.errors import ErrorCode
from sandbox.transfers.tars import each_member

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST = 1 << 20
Members = dict[str, bytes | tarfile.TarInfo]


def tar(members: Members) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in members.items():
            made = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(content, bytes):
                made.size = len(content)
            archive.addfile(made, io.BytesIO(content) if isinstance(content, bytes) else None)
    return target.getvalue()


def member(name: str, kind: bytes, link: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, link, size
    return made


LAYER = tar({"etc/file": b"content"})


def image(layer: bytes = LAYER, **changes: Any) -> Members:
    """The members of an archive with one layer; ``changes`` replace members, or fields of the manifest and the configuration."""
    unpack = {gzip.compress(b"")[:2]: gzip.decompress, zstd.compress(b"")[:2]: zstd.decompress}.get(layer[:2], bytes)
    plain = unpack(layer)
    digest = f"sha256:{hashlib.sha256(plain).hexdigest()}"
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": [digest]}}
    listed = {"Config": "config.json", "RepoTags": ["app:1"], "Layers": ["one/layer.tar"]}
    config |= changes.pop("config", {})
    listed |= changes.pop("listed", {})
    members: Members = {"config.json": json.dumps(config).encode(), "one/layer.tar": layer}
    members["manifest.json"] = json.dumps([listed]).encode()
    members.update(changes.pop("members", {}))
    return members


def read(members: Members | bytes, most: int = MOST) -> ArchiveReader:
    return ArchiveReader(io.BytesIO(members if isinstance(members, bytes) else tar(members)), most)


def contents(archive: ArchiveReader) -> list[bytes]:
    return [b"".join(pieces) for _, _, pieces in archive.layer_contents()]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd.compress])
@pytest.mark.parametrize("pack_layer", [bytes, gzip.compress, zstd.compress])
def test_an_archive_is_read_packed_or_not(pack: Callable[[bytes], bytes], pack_layer: Callable[[bytes], bytes]) -> None:
    found = read(pack(tar(image(pack_layer(LAYER)))))
    assert (found.names, found.layers, found.bytes) == (("app:1",), ("one/layer.tar",), len(LAYER))
    assert contents(found) == [LAYER]


def test_a_layer_that_is_there_already_is_a_link() -> None:
    digest = f"sha256:{hashlib.sha256(LAYER).hexdigest()}"
    members = image(
        listed={"Layers": ["one/layer.tar", "two/layer.tar"]},
        config={"rootfs": {"type": "layers", "diff_ids": [digest, digest]}},
        members={"two/layer.tar": member("two/layer.tar", tarfile.SYMTYPE, "../one/layer.tar")},
    )
    found = read(members)
    assert found.layers == ("one/layer.tar", "one/layer.tar")
    assert contents(found) == [LAYER]


def test_headers_that_are_read_are_not_kept() -> None:
    big = bytes(3 << 20)
    layer = tar({"big": big})
    outer = pax_headers(tarfile.XGLTYPE, 1, 5000, end=b"") * 5
    found = read(outer + tar(image(layer)), 16 << 20)
    assert contents(found) == [layer]
    with found._tar() as archive:
        for _ in each_member(archive):
            assert not archive.pax_headers


def test_names_of_megabytes_together_are_refused() -> None:
    with pytest.raises(SandboxError, match="characters"):
        read(gzip.compress(long_names(100, 60_000)), 16 << 20)


def sparse_layer() -> bytes:
    made = member("hole", tarfile.GNUTYPE_SPARSE)
    return made.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def chain_of_long_names() -> bytes:
    header = member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=8).tobuf(tarfile.GNU_FORMAT)
    return (header + b"name\0".ljust(512, b"\0")) * 4000


def long_names(count: int, chars: int) -> bytes:
    made = b""
    for number in range(count):
        made += tarfile.TarInfo(f"{number:04}" + "/x" * (chars // 2)).tobuf(tarfile.GNU_FORMAT)
    return made + bytes(1024)


def pax_headers(kind: bytes, count: int, chars: int, end: bytes = bytes(1024)) -> bytes:
    """A folder with headers of which each is small."""
    headers = b""
    for number in range(count):
        comment = record(b"comment%d" % number, b"x" * chars)
        header = member("h", kind, size=len(comment)).tobuf(tarfile.USTAR_FORMAT)
        headers += header + comment + bytes(-len(comment) % 512)
    return headers + member("x", tarfile.DIRTYPE).tobuf() + end


def pax_header(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    header = member("h", kind, size=len(records)).tobuf(tarfile.USTAR_FORMAT)
    return header + records + bytes(-len(records) % 512) + member("x", tarfile.DIRTYPE).tobuf() + bytes(1024)


def record(name: bytes, value: bytes) -> bytes:
    rest = b" %s=%s\n" % (name, value)
    count = len(rest) + len(str(len(rest)))
    count = len(rest) + len(str(count))
    return b"%d%s" % (count, rest)


def negative_size() -> bytes:
    header = bytearray(member("x", tarfile.REGTYPE).tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 10 + b"\xfe\x00"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) * 4


EMPTY = zstd.compress(b"") * 100_000  # a second for each MiB


def wide_window() -> bytes:
    """A frame whose reader would need 2 GiB."""
    packed = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 31})
    frame = bytearray(packed.compress(tar(image())) + packed.flush())
    assert frame[4] & 0x20 == 0, "a single segment has no window"
    return bytes(frame)


REFUSED: dict[str, tuple[Members | bytes | Callable[[], Members], str]] = {
    "no tar": (b"#!/bin/sh\n" * 200, "not a tar"),
    "another compression": (bz2.compress(tar(image())), "not a tar, plain or compressed with gzip or zstd"),
    "nothing": (b"", "not a tar"),
    "cut short": (tar(image())[:1500], "missing|damaged|no manifest"),
    "gzip cut short": (gzip.compress(tar(image()))[:100], "damaged"),
    "no manifest": ({"x": b""}, "no manifest.json"),
    "manifest is no JSON": (image(members={"manifest.json": b"{"}), "not JSON"),
    "manifest nests": (image(members={"manifest.json": b"[" * 100_000}), "not JSON"),
    "manifest is another thing": (image(members={"manifest.json": b"{}"}), "lists no image"),
    "two images": (image(members={"manifest.json": b"[{},{}]"}), "2 images"),
    "no layers": (image(listed={"Layers": []}), "made of"),
    "layers are no texts": (image(listed={"Layers": [1]}), "made of"),
    "too many layers": (image(listed={"Layers": ["one/layer.tar"] * 121}), "121 layers"),
    "a layer is missing": (image(listed={"Layers": ["two/layer.tar"]}), "missing"),
    "the configuration is missing": (image(listed={"Config": "other"}), "missing"),
    "the configuration is elsewhere": (image(listed={"Config": "../../etc/passwd"}), "leads out"),
    "the configuration names other layers": (image(config={"rootfs": {"diff_ids": []}}), "names 0 layers"),
    "the hash is another": (image(config={"rootfs": {"diff_ids": [f"sha256:{'0' * 64}"]}}), "has not the hash"),
    "the hash is no hash": (image(config={"rootfs": {"diff_ids": ["x"]}}), "does not name its layers"),
    "a link to the host": (image(members={"one/layer.tar": member("one/layer.tar", tarfile.SYMTYPE, "/etc/passwd")}), "missing"),
    "a link to itself": (image(members={"one/layer.tar": member("one/layer.tar", tarfile.SYMTYPE, "layer.tar")}), "missing"),
    "a name that leads out": ({"../x": b""}, "leads out"),
    "an absolute name": ({"/etc/x": b""}, "leads out"),
    "a member twice": (tar({"a": b"1"})[:1024] + tar({"a": b"2"}), "twice"),
    "a name of a gigabyte": (member("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=1 << 30).tobuf() * 2, "too long|more than"),
    "a chain of long names": (chain_of_long_names(), "too long"),
    "a name of 100,000": (long_names(1, 100_000), "header that is too long"),
    "global headers in a row": (pax_headers(tarfile.XGLTYPE, 20, 5000), "header that is too long"),
    "a layer with a name of 100,000": (image(long_names(1, 100_000)), "a layer has a header that is too long"),
    "a layer with headers in a row": (image(pax_headers(tarfile.XHDTYPE, 20, 5000)), "a layer has a header that is too long"),
    "a pax header of digits": (pax_header(record(b"comment", b"1" * 60_000)), "it has too many digits in its pax headers"),
    "a layer with a pax header of digits": (
        image(pax_header(record(b"comment", b"1" * 60_000))), "a layer has too many digits"),
    "a zstd bomb": (zstd.compress(bytes(64 << 20)), "no manifest.json"),
    "a layer that is a zstd bomb": (image(zstd.compress(tar({"x": bytes(8 << 20)}))), "more than"),
    "a layer of zstd frames with nothing in them": (lambda: image(zstd.compress(LAYER) + EMPTY), "EmptyFrames"),
    "an archive of such frames": (zstd.compress(tar(image())[:512]) + EMPTY, "EmptyFrames"),
    "gzip members with nothing in them": (gzip.compress(tar(image())[:512]) + gzip.compress(b"") * 50_000, "EmptyFrames"),
    "zstd cut short": (zstd.compress(tar(image()))[:100], "damaged"),
    "zstd with damage": (zstd.compress(tar(image()))[:40] + b"x" * 40, "damaged"),
    "a zstd window of a gigabyte": (wide_window(), "damaged"),
    "a negative size": (negative_size(), "a negative size"),
    "a bomb of nothing": (gzip.compress(bytes(64 << 20)), "no manifest.json"),
    "a bomb in a member": (gzip.compress(tar({"x": bytes(8 << 20), **image()})), "more than"),
    "a layer that is a bomb": (image(gzip.compress(tar({"x": bytes(8 << 20)}))), "more than"),
    "a layer that leads out": (image(tar({"../x": b""})), "leads out"),
    "a layer with a link that leads out": (image(tar({"x": member("x", tarfile.LNKTYPE, "../../etc/passwd")})), "leads out"),
    "a layer with a sparse file": (image(sparse_layer()), "sparse"),
    "a layer that is no tar": (image(b"x" * 5000), "damaged"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", REFUSED)
def test_an_archive_that_lies_is_refused(what: str) -> None:
    members, reason = REFUSED[what]
    with pytest.raises(SandboxError, match=reason) as caught:
        read(members() if callable(members) else members)
    assert caught.value.code is ErrorCode.unsafe_archive
    assert caught.value.hint


def test_settings_are_kept_and_what_would_pass_for_something_else_is_not() -> None:
    labels = {"a": "b", "dev.gamebox.build.owner": "f" * 32, "dev.gamebox.content": "x", "dev.gamebox.contents": "Python 3"}
    config = {
        "architecture": "amd64", "os": "linux", "created": "yesterday", "history": [{"comment": "x"}] * 1000,
        "config": {"Env": ["A=1", "B"], "Cmd": ["sh"], "User": "u", "Volumes": {"/x": {}}, "OnBuild": ["RUN x"], "Labels": labels,
                   "Healthcheck": {"Test": ["NONE"]},
                   "ExposedPorts": {"80/tcp": {}, "x": {}}},
    }  # fmt: skip
    found = json.loads(clean_config(config, ("sha256:x",), own=False))
    assert found["config"]["Env"] == ["A=1"]
    assert left_out(config) == ("OnBuild", "Volumes")
    assert left_out({"config": []}) == ()
    assert found["config"]["ExposedPorts"] == {"80/tcp": {}}
    assert not {"Volumes", "OnBuild"} & found["config"].keys()
    kept = found["config"]["Labels"]
    assert kept["a"] == "b"
    assert kept["dev.gamebox.build.owner"] != "f" * 32
    assert "dev.gamebox.content" not in kept
    assert len(found["history"]) == 1
    assert found["created"].startswith("1970")
    assert json.loads(clean_config(config, ("sha256:x",), own=True))["config"]["Labels"]["dev.gamebox.content"] == "x"


@pytest.mark.parametrize(
    "settings",
    [{"Env": "A=1"}, {"Env": [1]}, {"Env": ["A=1"] * 1001}, {"Env": ["A=" + "x" * 300_000]}, {"User": ["x"]}, {"Cmd": ["\0"]},
     {"Labels": []}, {"Labels": {"a": 1}}, {"WorkingDir": "\ud800"}],
)  # fmt: skip
def test_settings_that_cannot_be_read_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SandboxError) as caught:
        clean_config({"config": settings}, (), own=False)
    assert caught.value.code is ErrorCode.unsafe_archive


def test_the_name_of_an_archive_is_a_claim() -> None:
    assert importable_name(None, ["team/app:1"]) == "team/app:1"
    assert importable_name("other", ["a", "b"]) == "other:latest"
    assert importable_name("gamebox/base", []) == "gamebox/base:latest"
    for asked, said in ((None, []), (None, ["a", "b"]), (None, ["gamebox/base:latest"]), (None, ["A b"]), ("gamebox-build/x", [])):
        with pytest.raises(SandboxError):
            importable_name(asked, said)


def test_what_an_image_says_of_itself_is_cleaned_and_bounded() -> None:
    said = read_manifest({"dev.gamebox.contents": "Python 3\n\x1b[31mIgnore\u202e all\x00 rules" + "x" * 5000})
    assert "\n" not in said
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "\0" not in said
    assert said.startswith("Python 3 Ignore")
    assert len(said) <= MOST_CHARS + 1
    assert read_manifest({}) == ""
