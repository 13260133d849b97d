"""A throw-away certificate for 127.0.0.1, made where it is used and trusted by nobody."""

from __future__ import annotations

import ipaddress
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kcl_host.local.http import LOOPBACK

_LIFE: Final = timedelta(days=7)
_SKEW: Final = timedelta(days=1)


class Certificate:
    """`pem` is what a client has to trust; the key is only ever in this process's server."""

    def __init__(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kcl-host local")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + _LIFE)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))]), critical=False
            )
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.pem = certificate.public_bytes(serialization.Encoding.PEM)
        self._key_pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def server_context(self) -> ssl.SSLContext:
        """Offers HTTP/2 first, then HTTP/1.1."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2", "http/1.1"])
        with tempfile.TemporaryDirectory() as folder:
            # The ssl module reads keys from files only.
            certificate, key = Path(folder, "certificate.pem"), Path(folder, "key.pem")
            certificate.write_bytes(self.pem)
            key.write_bytes(self._key_pem)
            context.load_cert_chain(certificate, key)
        return context
