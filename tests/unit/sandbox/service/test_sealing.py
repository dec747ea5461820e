"""What the store holds in secret: it is opened by one key, in one place, and a service without that key does not start."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from sandbox.errors import ErrorCode, SandboxError
from sandbox.service.fleet.provision import Hidden
from sandbox.service.store.database import Database
from sandbox.service.store.sealing import FILE, Seal, open_seal
from sandbox.service.store.tables import secrets as rows
from sandbox.service.store.tables.secrets import SecretRecord


def test_a_sealed_value_is_read_in_its_place_only_and_by_its_key() -> None:
    seal, value = Seal(b"k" * 32), {"value": "swordfish-99"}
    sealed = seal.close(value, "here")
    assert b"swordfish" not in sealed
    assert sealed != seal.close(value, "here"), "equal values look different"
    assert seal.open(sealed, "here") == value
    assert seal.digest(b"guess") == seal.digest(b"guess") != Seal(b"x" * 32).digest(b"guess")
    for opened, place, by in (
        (sealed, "there", seal),
        (sealed, "here", Seal(b"x" * 32)),
        (sealed[:-1] + bytes([sealed[-1] ^ 1]), "here", seal),
        (b"", "here", seal),
    ):
        with pytest.raises(SandboxError) as caught:
            by.open(opened, place)
        assert "swordfish" not in str(caught.value)


def test_the_key_is_made_at_the_first_start_for_its_owner_alone(tmp_path: Path) -> None:
    first = Database(tmp_path / "db")
    sealed = first.seal.close({"a": 1}, "x")
    first.close()
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".new"] == []
    second = Database(tmp_path / "db")
    assert second.seal.open(sealed, "x") == {"a": 1}
    second.close()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_text("0" * 64), "is not the key of the store"),
        (lambda path: path.write_text("no key"), "is not a key"),
        (lambda path: path.chmod(0o644), "can be read by others"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/passwd")), "cannot be used"),
    ],
)
def test_a_service_without_its_key_does_not_start(tmp_path: Path, spoil: object, words: str) -> None:
    Database(tmp_path / "db").close()
    spoil(tmp_path / FILE)  # type: ignore[operator]
    with pytest.raises(SandboxError, match=words) as caught:
        Database(tmp_path / "db")
    assert caught.value.code is ErrorCode.setup_failed
    assert "secret.key" in caught.value.hint


def test_secrets_have_versions_and_a_number_and_belong_to_a_tenant(tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    database.close()
    connection = sqlite3.connect(tmp_path / "db")
    connection.row_factory = sqlite3.Row
    with connection:
        connection.execute("INSERT INTO tenants (id, created_at) VALUES ('a', 0), ('b', 0)")
        assert rows.put(connection, "a", "one", b"1", 1.0, 2) == SecretRecord("one", 1.0, 1.0, 1)
        assert rows.put(connection, "a", "one", b"2", 5.0, 2) == SecretRecord("one", 1.0, 5.0, 2)
        assert rows.put(connection, "a", "two", b"3", 6.0, 2) is not None
        assert rows.put(connection, "a", "three", b"4", 7.0, 2) is None
        assert [each.name for each in rows.of_tenant(connection, "a")] == ["one", "two"]
        assert rows.sealed_values(connection, "a", {"one", "three"}) == {"one": b"2"}
        assert rows.sealed_values(connection, "b", {"one"}) == {}
        assert not rows.delete(connection, "b", "one")
        assert rows.delete(connection, "a", "one")
        open_seal(tmp_path, connection)
    connection.close()


def test_values_are_in_no_repr() -> None:
    hidden = Hidden({"A": "value-one"}, {"B": ("value-two", True)}, {"llm": {"X": "value-three"}})
    assert "value" not in repr(hidden)
    assert Hidden.of(hidden.data()) == hidden
