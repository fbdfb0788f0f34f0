"""Access to the API server: tokens, kubeconfigs, and the keys that it signs with."""

from __future__ import annotations

import base64
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml


class Users:
    """The API server's static tokens: user -> token. `admin` may do everything."""

    def __init__(self, groups: Mapping[str, str]) -> None:
        """`groups`: the group of each further user, empty for none."""
        self._groups = {"admin": "system:masters", **groups}
        self.tokens = {user: secrets.token_urlsafe(24) for user in self._groups}

    def write(self, path: Path) -> Path:
        lines = (f'{token},{user},{user},"{self._groups[user]}"\n' for user, token in self.tokens.items())
        private(path).write_text("".join(lines))
        return path


def private(path: Path) -> Path:
    """`path`, existing and readable by its owner only."""
    path.touch(mode=0o600)
    return path


def write_kubeconfig(path: Path, server: str, authority: Path, token: str) -> Path:
    """A kubeconfig with one context `coxswain`, self-contained."""
    trust = base64.b64encode(authority.read_bytes()).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "coxswain",
        "clusters": [{"name": "coxswain", "cluster": {"server": server, "certificate-authority-data": trust}}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "coxswain", "context": {"cluster": "coxswain", "user": "user"}}],
    }
    private(path).write_text(yaml.safe_dump(content))
    return path


def write_signing_key(path: Path) -> Path:
    """A fresh P-256 private key for service account tokens (RFC 5915, without the public part,
    which its reader computes).
    """
    # The private number starts with a byte 1, so that it lies within the curve's order.
    head, tail = bytes.fromhex("30310201010420"), bytes.fromhex("a00a06082a8648ce3d030107")
    body = base64.b64encode(head + b"\x01" + secrets.token_bytes(31) + tail).decode()
    private(path).write_text(f"-----BEGIN EC PRIVATE KEY-----\n{body}\n-----END EC PRIVATE KEY-----\n")
    return path


def write_client_certificate(folder: Path, user: str, group: str) -> tuple[Path, Path]:
    """(certificate, key): signed by itself, so the certificate is also the authority to trust."""
    certificate, key = folder / f"{user}.crt", folder / f"{user}.key"
    private(key)
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "365",
    ]
    names = ["-subj", f"/O={group}/CN={user}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    return certificate, key
