"""The certificate that a rival's webhooks serve with: one that is its own authority, so that one
file does for all.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.access import private

HOST = "127.0.0.1"  # the API server reaches webhooks there
# Rotators renew what ends within 90 days.
DAYS = "365"


@dataclass(frozen=True)
class Certificate:
    """Files as a kubelet mounts them."""

    folder: Path

    @property
    def bundle(self) -> str:
        """For `caBundle`."""
        return base64.b64encode((self.folder / "tls.crt").read_bytes()).decode()

    def secret(self, namespace: str, name: str) -> dict[str, object]:
        """The Secret that certificate rotators read, and leave alone when they like it."""
        data = {path.name: base64.b64encode(path.read_bytes()).decode() for path in sorted(self.folder.iterdir())}
        return {"metadata": {"name": name, "namespace": namespace}, "data": data}


def write_certificate(folder: Path, names: Sequence[str]) -> Certificate:
    """For these names and HOST. The key is in PKCS#1, since rotators read no other."""
    folder.mkdir(parents=True)
    key, certificate = private(folder / "tls.key"), folder / "tls.crt"
    _openssl("genrsa", "-traditional", "-out", str(key), "2048")
    others = ",".join([*(f"DNS:{name}" for name in names), f"IP:{HOST}"])
    _openssl(
        "req", "-x509", "-new", "-key", str(key), "-out", str(certificate), "-days", DAYS,
        "-subj", f"/CN={names[0]}", "-addext", f"subjectAltName={others}",
    )  # fmt: skip
    private(folder / "ca.key").write_bytes(key.read_bytes())
    (folder / "ca.crt").write_bytes(certificate.read_bytes())
    return Certificate(folder)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
