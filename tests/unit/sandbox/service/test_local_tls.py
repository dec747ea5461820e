"""The authority of a service's own: made once, renewed in time, and only from files that nobody else has touched."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.settings import Settings, read_settings
from sandbox.service.tls import authority, local

DOMAIN = "sandboxes.localhost"
MADE = ("ca.key", "ca.pem", "server.pem", "bundle.pem")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Those of a service in a folder of its own."""
    return settings_of(tmp_path)


def settings_of(folder: Path, **given: Any) -> Settings:
    data = folder / "data"
    data.mkdir(mode=0o700, exist_ok=True)
    return read_settings({"data": data, "tls_local": True, **given})


def files_of(settings: Settings) -> dict[str, bytes]:
    return {name: (settings.data / "tls" / name).read_bytes() for name in MADE}


@contextmanager
def serving(certificate: Path) -> Iterator[int]:
    """A server at a port of this host that only shakes hands."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                accepted.settimeout(30)
                try:
                    with context.wrap_socket(accepted, server_side=True) as peer:
                        peer.recv(1)
                except OSError:
                    accepted.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def reach(port: int, name: str, trusted: Path) -> None:
    """Shake hands as a client does that trusts a file. Raises ssl.SSLError."""
    context = ssl.create_default_context(cafile=str(trusted))
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python does from 3.13 on
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=name) as tls,
    ):
        tls.sendall(b"x")


def test_clients_that_trust_it_reach_the_service_and_all_its_sandboxes(settings: Settings) -> None:
    files = local.prepare(settings)
    assert files.made == "authority"
    with serving(files.server) as port:
        for trusted in (files.authority, files.bundle):
            for name in ("localhost", "127.0.0.1", DOMAIN, f"8000-abc.{DOMAIN}", f"api.{DOMAIN}"):
                reach(port, name, trusted)
        with pytest.raises(ssl.SSLCertVerificationError):
            reach(port, "example.com", files.authority)


def test_the_authority_signs_for_no_other_name(settings: Settings) -> None:
    files = local.prepare(settings)
    own = authority.read_identity((files.folder / "ca.key").read_bytes())
    assert own is not None
    other = authority.Names(["example.com", "localhost"], [])
    (files.folder / "forged.pem").write_bytes(authority.make_server(own, other, authority.current_time()).pem)
    with serving(files.folder / "forged.pem") as port, pytest.raises(ssl.SSLCertVerificationError, match="subtree"):
        reach(port, "example.com", files.authority)


def test_it_is_made_once_and_only_its_owner_can_read_it(settings: Settings) -> None:
    assert local.examine(settings) == "authority"
    assert not (settings.data / "tls").exists()
    files = local.prepare(settings)
    before = files_of(settings)
    assert {path.stat().st_mode & 0o777 for path in files.folder.iterdir()} == {0o600}
    assert files.folder.stat().st_mode & 0o777 == 0o700
    assert (local.examine(settings), local.prepare(settings).made) == ("", "")
    assert files_of(settings) == before


def test_the_bundle_has_the_authorities_of_the_system(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "system.pem").write_text("those of the system\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "system.pem"))
    files = local.prepare(settings)
    assert files.bundle.read_bytes() == b"those of the system\n\n" + files.authority.read_bytes()
    # A shell that trusts the service already does not make the bundle grow.
    monkeypatch.setenv("SSL_CERT_FILE", str(files.bundle))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "system.pem"))
    before = files_of(settings)
    local.prepare(settings)
    assert files_of(settings) == before


def test_another_domain_has_another_authority(settings: Settings, tmp_path: Path) -> None:
    local.prepare(settings)
    before = files_of(settings)
    other = settings_of(tmp_path, domain="sandboxes.example.net")
    assert (local.examine(other), local.prepare(other).made) == ("authority", "authority")
    assert all(files_of(settings)[name] != data for name, data in before.items())


def test_it_is_renewed_before_it_ends_and_those_who_trust_it_go_on(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = local.prepare(settings)
    before, at = files_of(settings), authority.current_time()
    (tmp_path / "trusted.pem").write_bytes(before["ca.pem"])
    monkeypatch.setattr(local, "current_time", lambda: at + authority.SERVER_LIFE - timedelta(days=40))
    assert local.prepare(settings).made == ""
    monkeypatch.setattr(local, "current_time", lambda: at + authority.SERVER_LIFE - timedelta(days=20))
    assert local.prepare(settings).made == "certificate"
    assert files_of(settings)["ca.pem"] == before["ca.pem"]
    monkeypatch.setattr(local, "current_time", lambda: at)
    monkeypatch.setattr(local, "AUTHORITY_RENEWAL", authority.AUTHORITY_LIFE)
    assert local.prepare(settings).made == "authority"
    assert files_of(settings)["ca.pem"] != before["ca.pem"]
    with serving(old.server) as port:
        reach(port, "localhost", tmp_path / "trusted.pem")
        reach(port, "localhost", old.authority)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("left", [b"", b"half of i"])
def test_what_a_killed_service_left_is_made_again(settings: Settings, name: str, left: bytes) -> None:
    files = local.prepare(settings)
    (files.folder / name).write_bytes(left)
    (files.folder / f".{name}.new").write_bytes(b"half")
    local.prepare(settings)
    assert not list(files.folder.glob(".*"))
    with serving(files.server) as port:
        reach(port, f"8000-abc.{DOMAIN}", files.bundle)


def test_a_write_that_is_cut_leaves_the_old_file(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    local.prepare(settings)
    before = files_of(settings)

    def cut(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", cut)
    monkeypatch.setattr(local, "SERVER_RENEWAL", authority.SERVER_LIFE)
    with pytest.raises(SandboxError, match="No space left"):
        local.prepare(settings)
    assert files_of(settings) == before


def _link_to(path: Path) -> None:
    target = path.parent.parent / f"moved-{path.name}"
    path.rename(target)
    path.symlink_to(target)


def _pipe_at(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: _link_to(folder / "ca.key"), "cannot be used"),
        (lambda folder: _link_to(folder), "cannot be used"),
        (lambda folder: _pipe_at(folder / "server.pem"), "is not a file"),
        (lambda folder: (folder / "ca.key").chmod(0o644), "may be read by others"),
        (lambda folder: folder.chmod(0o777), "may be changed by others"),
        (lambda folder: folder.parent.chmod(0o777), "may be changed by others"),
    ],
    ids=["link", "linked-folder", "pipe", "readable-key", "open-folder", "open-data"],
)
def test_what_others_may_have_touched_is_refused(
    settings: Settings, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(local.prepare(settings).folder)
    for call in (local.prepare, local.examine):
        with pytest.raises(SandboxError, match=message) as caught:
            call(settings)
        assert str(settings.data / "tls") in caught.value.message + caught.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("place", ["tls", "tls/ca.key", "."])
def test_what_belongs_to_somebody_else_is_refused(settings: Settings, place: str) -> None:
    local.prepare(settings)
    os.chown(settings.data / place, 1000, 1000)
    with pytest.raises(SandboxError, match="belongs to another user"):
        local.prepare(settings)


def test_a_certificate_has_the_names_of_the_service(tmp_path: Path) -> None:
    allowed = "Box.example.com,*.a.example.com,10.0.0.7"
    found = local.names_of(settings_of(tmp_path, domain="box.example.net", allowed_hosts=allowed))
    assert found.names == ["localhost", "box.example.net", "*.box.example.net", "box.example.com", "*.a.example.com"]
    assert [str(each) for each in found.addresses] == ["127.0.0.1", "::1", "10.0.0.7"]
    assert found.domains == ["a.example.com", "box.example.com", "box.example.net", "localhost"]
    beyond = local.names_of(settings_of(tmp_path, host="0.0.0.0"))
    assert socket.gethostname().lower() in beyond.names


def test_a_name_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    nowhere = ".".join(["x" * 60] * 4)  # with something before it, it is longer than a name may be
    assert local.unresolved_name(settings_of(tmp_path, domain=nowhere)) == f"8000-sandbox.{nowhere}"
    assert "libnss-myhostname" in local.resolving_hint(DOMAIN)
    assert "DNS" in local.resolving_hint("box.example.net")


def test_a_running_service_gets_the_new_certificate(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    files = local.prepare(settings)
    loaded: list[Path] = []
    answers: list[SandboxError | local.LocalTls] = [replace(files, made="certificate"), replace(files, made="")]
    answers.append(SandboxError(ErrorCode.setup_failed, "not now"))

    class LoadedError(Exception):
        """Ends the test."""

    class Context:
        def load_cert_chain(self, path: Path) -> None:
            loaded.append(path)
            raise LoadedError

    def prepare(_: Settings) -> local.LocalTls:
        if isinstance(found := answers.pop(), SandboxError):
            raise found
        return found

    monkeypatch.setattr(local, "prepare", prepare)
    monkeypatch.setattr(local, "LOOK_SECONDS", 0.0)
    with pytest.raises(LoadedError):
        asyncio.run(local.keep_renewing(settings, Context()))  # type: ignore[arg-type]
    assert (loaded, answers) == ([files.server], [])
