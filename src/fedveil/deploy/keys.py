"""Certificates and keys of a federation: a small authority, the SuperLink's certificate, one key per site.

Flower 1.41 knows a SuperNode by an elliptic key (NIST P-384 here) in OpenSSH's format; the SuperLink proves itself by
TLS, with a certificate that its sites check against the authority's and nobody else's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedveil.core.errors import Refused, positive

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""In every server certificate: the training process and the operator's commands are on the SuperLink's own machine."""
AUTHORITY_DAYS = 3650
CLOCKS = timedelta(hours=1)
"""Certificates begin this long ago, for machines whose clocks are behind."""


@dataclass(frozen=True)
class Authority:
    """The federation's own certificate authority."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, name: str) -> Authority:
        """A fresh one; it signs server certificates and no further authorities."""
        key, subject = ec.generate_private_key(ec.SECP384R1()), _named(name)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = _certificate(subject, subject, key.public_key(), AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
        return cls(key, builder.sign(key, hashes.SHA384()))

    @classmethod
    def read(cls, key: bytes, certificate: bytes) -> Authority:
        """The authority that an earlier ``deploy init`` wrote."""
        try:
            private = serialization.load_pem_private_key(key, password=None)
            public = x509.load_pem_x509_certificate(certificate)
        except ValueError as problem:
            raise Refused(f"ca: it cannot be read ({problem}); give the folder that `deploy init` wrote") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != public.public_key():
            raise Refused("ca: ca.key does not belong to ca.crt; give the folder that `deploy init` wrote")
        return cls(private, public)

    def server(self, hosts: Sequence[str], days: int) -> tuple[bytes, bytes]:
        """Key and certificate, in PEM, of a server that is reached under these names and addresses, and from itself."""
        positive(days=days)
        names = tuple(dict.fromkeys((*hosts, *LOOPBACK)))
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _certificate(_named(names[0]), self.certificate.subject, key.public_key(), days, self.key)
        builder = builder.add_extension(x509.SubjectAlternativeName([general_name(n) for n in names]), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        return pem(key), builder.sign(self.key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def node_key() -> tuple[bytes, bytes]:
    """A SuperNode's private and public key, both as OpenSSH writes them."""
    key, ssh = ec.generate_private_key(ec.SECP384R1()), serialization.PrivateFormat.OpenSSH
    private = key.private_bytes(serialization.Encoding.PEM, ssh, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + b"\n"


def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as servers read it."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def general_name(host: str) -> x509.GeneralName:
    """A host as a certificate names it: an address, or a DNS name.

    >>> general_name("10.0.0.7"), general_name("superlink.example.org")
    (<IPAddress(value=10.0.0.7)>, <DNSName(value='superlink.example.org')>)
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    parts = host.split(".")
    plain = len(host) <= 253 and all(0 < len(p) <= 63 and _plain(p) for p in parts) and not parts[-1].isdigit()
    if not plain:
        raise Refused(
            f"--host: {host!r} is neither a host name nor an address; give it without https:// and without a port, "
            "such as superlink.example.org"
        )
    return x509.DNSName(host.lower())


def names_in(certificate: bytes) -> list[str]:
    """The names and addresses that a server's certificate is for."""
    try:
        found = x509.load_pem_x509_certificate(certificate).extensions
        names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as problem:
        raise Refused(f"server.crt: it cannot be read ({problem}); give --host for each name") from None
    return [str(name.value) for name in names]


def _plain(label: str) -> bool:
    return label.isascii() and label.replace("-", "a").isalnum() and label[0] != "-" and label[-1] != "-"


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    days: int,
    signer: ec.EllipticCurvePrivateKey | None = None,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - CLOCKS).not_valid_after(now + timedelta(days=days))
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    above = public if signer is None else signer.public_key()
    return builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(above), critical=False)
