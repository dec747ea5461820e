"""Forms and zips as clients of SWE-ReX send them, and as a hostile one would."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile

import pytest

from sandbox.service.http.problems import Problem
from sandbox.service.wire.swerex.files import Upload, _tar_of_zip
from sandbox.service.wire.swerex.models import SwerexError

TYPE = "multipart/form-data; boundary=limit"


def form(**fields: bytes) -> bytes:
    parts = [
        b'--limit\r\nContent-Type: text/plain\r\nContent-Disposition: form-data; name="%s"; filename="a; b"\r\n\r\n%s\r\n'
        % (name.encode(), value)
        for name, value in fields.items()
    ]
    return b"".join([*parts, b"--limit--\r\n"])


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", method) as made:
        for name, data in members:
            made.writestr(name, data)
    return sink.getvalue()


def test_a_form_has_the_bytes_of_its_file() -> None:
    data = b"\r\n--almost\r\n\0\xff\r\n\r\n"
    asked = Upload.of_form(TYPE, form(file=data, target_path=b"/tmp/a b", unzip=b"true"))
    assert asked == Upload(data, "/tmp/a b", unzip=True)
    assert not Upload.of_form(TYPE, form(target_path=b"a", file=b"", unzip=b"false")).unzip


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", form(file=b"", target_path=b"a")),
        (TYPE, b""),
        (TYPE, b"--limit\r\nno head"),
        (TYPE, form(file=b"")),
        (TYPE, form(file=b"", target_path=b"")),
        (TYPE, form(file=b"", target_path=b"a" * 4097)),
        (TYPE, b"--limit\r\n" + b"a: b\r\n" * 1000 + b"\r\n\r\n"),
        ("multipart/form-data; boundary=" + "x" * 80, form(file=b"", target_path=b"a")),
    ],
)
def test_what_is_no_such_form_is_refused(content_type: str, body: bytes) -> None:
    with pytest.raises(Problem):
        Upload.of_form(content_type, body)


def test_a_zip_becomes_a_tar_of_the_same_files() -> None:
    made = b"".join(_tar_of_zip(zipped(("a.txt", b"one"), ("sub/", b""), ("sub/b.bin", bytes(100_000)))))
    with tarfile.open(fileobj=io.BytesIO(made)) as tar:
        assert {each.name: each.size for each in tar if each.isfile()} == {"a.txt": 3, "sub/b.bin": 100_000}
        assert tar.extractfile("a.txt").read() == b"one"  # type: ignore[union-attr]


def test_names_are_left_for_the_sandbox_to_judge() -> None:
    made = b"".join(_tar_of_zip(zipped(("../../out", b"x"))))
    with tarfile.open(fileobj=io.BytesIO(made)) as tar:
        assert tar.getnames() == ["../../out"]


def test_a_zip_that_lies_is_an_error() -> None:
    good = zipped(("a", b"x" * 1000), method=zipfile.ZIP_STORED)
    longer = good.replace(struct.pack("<I", 1000), struct.pack("<I", 100_000))
    for data in (b"", b"PK", good[:-30], good.replace(b"x", b"y"), longer, bytes(1000)):
        with pytest.raises(SwerexError):
            b"".join(_tar_of_zip(data))
