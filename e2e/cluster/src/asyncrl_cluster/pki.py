"""The certificate authority and all that it signs. Made once; kept until the cluster is taken down."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from asyncrl_cluster.layout import CONTROL_PLANE_ADDRESS

VALID_DAYS = 3650


@dataclass(frozen=True)
class Pki:
    """Certificates and keys as files `<name>.crt` and `<name>.key` of one folder."""

    folder: Path

    def ensure_authority(self, name: str = "ca") -> None:
        if self.certificate(name).exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"asyncrl-cluster-{name}")])
        builder = _builder(subject, subject, key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        builder = builder.add_extension(_usage(signs=True), critical=True)
        self._write(name, builder.sign(key, hashes.SHA256()), key)

    def ensure_key_pair(self, name: str) -> None:
        """A key without a certificate, its public half as `<name>.pub`."""
        if self.key(name).exists():
            return
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self.folder / f"{name}.pub").write_bytes(public)
        self._write_key(name, key)

    def ensure(
        self,
        name: str,
        *,
        user: str,
        groups: Sequence[str] = (),
        hosts: Sequence[str] = (),
        authority: str = "ca",
    ) -> None:
        """A certificate for a client, and for a server that answers to `hosts`."""
        if self.certificate(name).exists():
            return
        issuer = x509.load_pem_x509_certificate(self.certificate(authority).read_bytes())
        issuer_key = serialization.load_pem_private_key(self.key(authority).read_bytes(), None)
        assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*names, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = _builder(subject, issuer.subject, key).add_extension(_usage(signs=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        self._write(name, builder.sign(issuer_key, hashes.SHA256()), key)

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def kubeconfig(self, name: str) -> Path:
        return self.folder / f"{name}.kubeconfig"

    def ensure_kubeconfig(self, name: str, *, user: str, groups: Sequence[str] = ()) -> Path:
        """Access to the API server as `user`, self-contained."""
        self.ensure(name, user=user, groups=groups)
        path = self.kubeconfig(name)
        if not path.exists():
            cluster = {
                "server": f"https://{CONTROL_PLANE_ADDRESS}:6443",
                "certificate-authority-data": _encoded(self.certificate("ca")),
            }
            access = {
                "client-certificate-data": _encoded(self.certificate(name)),
                "client-key-data": _encoded(self.key(name)),
            }
            content = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "asyncrl", "cluster": cluster}],
                "users": [{"name": user, "user": access}],
                "contexts": [{"name": "asyncrl", "context": {"cluster": "asyncrl", "user": user}}],
                "current-context": "asyncrl",
            }
            write_secret(path, yaml.safe_dump(content).encode())
        return path

    def _write(self, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._write_key(name, key)
        write_secret(self.certificate(name), certificate.public_bytes(serialization.Encoding.PEM))

    def _write_key(self, name: str, key: ec.EllipticCurvePrivateKey) -> None:
        encoding = (
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        write_secret(self.key(name), key.private_bytes(*encoding))


def write_secret(path: Path, content: bytes) -> None:
    """Write and rename, so that no reader sees half of it; nobody else may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    fresh.replace(path)


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=False,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
