"""Certificates of an authority of our own: made, read again, and judged whether they will do."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sandbox.frozen import dataclass
from sandbox.service.clock import now

AUTHORITY_LIFE, SERVER_LIFE = timedelta(days=5 * 365), timedelta(days=90)
# With the authority goes what it has signed, so it is renewed while a whole life of that is left.
AUTHORITY_RENEWAL, SERVER_RENEWAL = timedelta(days=120), timedelta(days=30)
# Clocks of clients differ.
EARLIER = timedelta(hours=1)
LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Names:
    """What a certificate is for: names, which may begin with ``*.``, and addresses."""

    names: Sequence[str]
    addresses: Sequence[Address]

    @property
    def alternatives(self) -> x509.SubjectAlternativeName:
        """The names and addresses as a certificate has them."""
        return x509.SubjectAlternativeName(
            [*(x509.DNSName(each) for each in self.names), *(x509.IPAddress(each) for each in self.addresses)]
        )

    @property
    def domains(self) -> Sequence[str]:
        """The names that an authority must be allowed to sign for; each is so with all names below it."""
        plain = sorted({each.removeprefix("*.") for each in self.names})
        return [each for each in plain if not any(each.endswith(f".{other}") for other in plain)]

    @property
    def constraints(self) -> x509.NameConstraints:
        """All that the authority may sign for, even if its key is stolen."""
        more: list[Network] = [ip_network(each) for each in self.addresses if not each.is_loopback]
        networks = [*LOOPBACK, *more]
        names = [x509.DNSName(each) for each in self.domains]
        return x509.NameConstraints([*names, *(x509.IPAddress(each) for each in networks)], None)


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its key, which are kept in one file: so they always belong together."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """Both of them."""
        pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self.certificate_pem + self.key.private_bytes(serialization.Encoding.PEM, pkcs8, plain)

    @property
    def certificate_pem(self) -> bytes:
        """The certificate alone."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def lasts(self, at: datetime, rest: timedelta) -> bool:
        """Return whether it is valid at that time, and ``rest`` longer."""
        return self.certificate.not_valid_before_utc <= at and at + rest < self.certificate.not_valid_after_utc


def read_identity(pem: bytes | None) -> Identity | None:
    """Return what a file has, None if it is not whole, or not ours."""
    if pem is None:
        return None
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError):
        return None
    if not isinstance(key, EllipticCurvePrivateKey) or certificate.public_key() != key.public_key():
        return None
    return Identity(certificate, key)


def make_authority(names: Names, at: datetime, before: Identity | None = None) -> Identity:
    """Return an authority for these names.

    One that was ``before``, for the same names, gives its key and its name: clients that trust it trust what the new one signs, as
    long as it is valid.
    """
    key = generate_private_key(SECP256R1()) if before is None else before.key
    title = f"Gamebox local authority {secrets.token_hex(4)}"
    subject = _named(title) if before is None else before.certificate.subject
    builder = _begun(subject, subject, key, at, at + AUTHORITY_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(names.constraints, critical=True)
    return Identity(builder.sign(key, hashes.SHA256()), key)


def make_server(authority: Identity, names: Names, at: datetime) -> Identity:
    """Return a certificate of a server for these names, signed by the authority."""
    key = generate_private_key(SECP256R1())
    end = min(at + SERVER_LIFE, authority.certificate.not_valid_after_utc)
    builder = _begun(_named("Gamebox service"), authority.certificate.subject, key, at, end)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(names.alternatives, critical=False)
    return Identity(builder.sign(authority.key, hashes.SHA256()), key)


def covers(authority: Identity, names: Names) -> bool:
    """Return whether an authority may sign for just these names, and nothing else."""
    try:
        found = authority.certificate.extensions.get_extension_for_class(x509.NameConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return found == names.constraints


def is_server_of(server: Identity, authority: Identity, names: Names) -> bool:
    """Return whether a certificate is for just these names, and signed by the authority."""
    try:
        server.certificate.verify_directly_issued_by(authority.certificate)
        found = server.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return found == names.alternatives


def _begun(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, at: datetime, end: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(at - EARLIER).not_valid_after(end)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _named(title: str) -> x509.Name:
    organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Gamebox")
    return x509.Name([organisation, x509.NameAttribute(NameOID.COMMON_NAME, title)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def current_time() -> datetime:
    """Return the time as certificates have it."""
    return datetime.fromtimestamp(int(now()), UTC)
