"""Settings: flags before variables before the file; what would put keys on the network in the clear is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.errors import ErrorCode, SandboxError
from sandbox.service import check
from sandbox.service.fleet.admission.pools import specs
from sandbox.service.folder import own_folder
from sandbox.service.server import serve
from sandbox.service.settings import read_settings
from sandbox.service.tls.given import check_tls


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAMEBOX_SERVICE_DATA", str(tmp_path))


def test_without_any_it_listens_on_loopback() -> None:
    settings = read_settings({"host": None})
    assert (settings.host, settings.time_to_live_seconds, settings.idle_seconds) == ("127.0.0.1", 3600, 900)
    assert settings.images == ("gamebox/*",)


def test_a_flag_is_stronger_than_a_variable_and_that_than_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "service.toml").write_text('port = 1\ndrain_seconds = 1\nidle_seconds = 1\nimages = ["a/*", "b"]\n')
    monkeypatch.setenv("GAMEBOX_SERVICE_PORT", "2")
    monkeypatch.setenv("GAMEBOX_SERVICE_DRAIN_SECONDS", "2")
    settings = read_settings({"port": 3})
    assert (settings.port, settings.drain_seconds, settings.idle_seconds) == (3, 2.0, 1.0)
    assert settings.images == ("a/*", "b")
    monkeypatch.setenv("GAMEBOX_SERVICE_IMAGES", "c, d/*")
    assert read_settings({}).images == ("c", "d/*")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_beyond_this_host_it_needs_tls_or_a_proxy(host: str) -> None:
    with pytest.raises(SandboxError, match="keys would cross the network in the clear") as caught:
        read_settings({"host": host})
    assert caught.value.code is ErrorCode.invalid_configuration
    assert read_settings({"host": host, "behind_proxy": "192.0.2.0/24"}).behind_proxy == ("192.0.2.0/24",)
    assert read_settings({"host": host, "tls_cert": "a", "tls_key": "b"}).tls_cert == Path("a")
    assert read_settings({"host": host, "tls_local": True}).is_encrypted


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_neither(host: str) -> None:
    assert read_settings({"host": host}).is_loopback


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"port": 70000}, "port"),
        ({"tls_cert": "a"}, "belong together"),
        ({"tls_local": True, "tls_cert": "a", "tls_key": "b"}, "leave out one of them"),
        ({"tls_local": True, "domain": "localhost"}, r"no certificate for \*\.localhost: leave it out .* sandboxes.localhost"),
        ({"tls_local": True, "domain": "my_box.example.com"}, "not a name that certificates may have"),
        ({"behind_proxy": "everywhere"}, "behind_proxy has 'everywhere': give networks, as in 192.0.2.10/32"),
        ({"behind_proxy": "10.0.0.1/8"}, "behind_proxy has '10.0.0.1/8': write 10.0.0.0/8"),
        ({"time_to_live_seconds": 1e6}, "time_to_live_seconds is more"),
    ],
)
def test_wrong_ones_are_named(flags: dict[str, object], problem: str) -> None:
    with pytest.raises(SandboxError, match=problem):
        read_settings(flags)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("port =")
    with pytest.raises(SandboxError, match=r"bad\.toml"):
        read_settings({}, tmp_path / "bad.toml")
    with pytest.raises(SandboxError, match=r"settings file .* does not exist"):
        read_settings({}, tmp_path / "none.toml")
    (tmp_path / "unknown.toml").write_text("prot = 1")
    with pytest.raises(SandboxError, match="prot"):
        read_settings({}, tmp_path / "unknown.toml")


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        ('[{"size": 1, "image": "other/image"}]', "'other/image' is not allowed by the operator"),
        ('[{"size": 1, "limits": {"speed": 1}}]', "no limit 'speed'"),
        ('[{"size": 1}, {"size": 2}]', "Two pools are for the same sandboxes"),
        ('[{"size": 1, "limits": {"memory_bytes": 1}}]', "memory"),
    ],
)
def test_a_pool_that_no_creation_could_use_is_refused(pools: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAMEBOX_SERVICE_POOLS", pools)
    with pytest.raises(SandboxError, match=words) as caught:
        specs(read_settings({}))
    assert caught.value.code is ErrorCode.invalid_configuration


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"prot = 3", r"prot: there is no such setting \(did you mean port\?\)"),
        (b"[quota]\nsandboxs = 3", r"quota\.sandboxs: there is no such setting \(did you mean sandboxes\?\)"),
        (b"port = = 3", r"cannot be read: Invalid value \(at line 1"),
        (b"\xff\xfe", r"is not UTF-8 \(byte 0\)"),
    ],
)
def test_a_file_of_settings_that_is_wrong(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "x.toml").write_bytes(content)
    with pytest.raises(SandboxError, match=problem) as caught:
        read_settings({}, tmp_path / "x.toml")
    assert caught.value.hint
    with pytest.raises(SandboxError, match="is not a file"):
        read_settings({}, tmp_path)


def test_a_variable_that_names_no_setting_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAMEBOX_SERVICE_QUOTA__SANDBOXES", "3")
    assert read_settings({}).quota.sandboxes == 3
    monkeypatch.setenv("GAMEBOX_SERVICE_IMAGE", "a")
    with pytest.raises(SandboxError, match=r"GAMEBOX_SERVICE_IMAGE names no setting \(did you mean images\?\)"):
        read_settings({})


def test_a_folder_with_files_of_others_is_not_closed_to_them(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (shared / "letter").write_text("of somebody")
    with pytest.raises(SandboxError, match="has other files") as caught:
        own_folder(shared)
    assert str(shared / "gamebox") in caught.value.hint
    assert shared.stat().st_mode & 0o777 == 0o755
    with pytest.raises(SandboxError, match="it is not a folder"):
        own_folder(shared / "letter")
    (shared / "service.toml").write_text("")  # the operator's, before the first start
    os.close(own_folder(shared))
    assert shared.stat().st_mode & 0o777 == 0o700


def test_a_certificate_that_cannot_be_used_is_named_before_anything_starts(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no PEM")
    settings = read_settings({"data": tmp_path / "data", "tls_cert": wrong, "tls_key": tmp_path / "none.pem"})
    for key, problem in ((tmp_path / "none.pem", "private key .* cannot be read: No such file"), (wrong, "cannot be used: ")):
        with pytest.raises(SandboxError, match=problem) as caught:
            check_tls(wrong, key)
        assert "--tls-cert and --tls-key" in caught.value.hint
    with pytest.raises(SandboxError, match="cannot be read"):
        serve(settings, lambda *_: None)
    assert not (tmp_path / "data").exists()
    assert check._address(settings).state == "fails"
    check_tls(None, None)


def test_with_a_certificate_of_its_own_names_have_a_domain_that_clients_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings({}).domain == "localhost"
    assert read_settings({"tls_local": True}).domain == "sandboxes.localhost"
    assert read_settings({"tls_local": True, "domain": "box.example.net"}).domain == "box.example.net"
    monkeypatch.setenv("GAMEBOX_SERVICE_TLS_LOCAL", "1")
    assert read_settings({}).domain == "sandboxes.localhost"
