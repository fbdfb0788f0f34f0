"""Command lines of a control plane on one loopback address: etcd, kube-apiserver, kube-controller-manager."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

import yaml

from tests.children import binary

Command = list[str | Path]
# One line for every request that is not a component's own: who asked for what, and how it was answered.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "users": ["system:apiserver"]},
        {"level": "None", "nonResourceURLs": ["/readyz"]},
        {"level": "Metadata"},
    ],
}


def etcd(root: Path, address: str, client: int, peer: int) -> Command:
    """It need not outlive a power cut, so it does not wait for the disk; it does outlive a SIGKILL."""
    there, peers = f"http://{address}:{client}", f"http://{address}:{peer}"
    return [
        binary("etcd"), "--data-dir", root / "etcd", "--unsafe-no-fsync", "--log-level", "error",
        "--listen-client-urls", there, "--advertise-client-urls", there,
        "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
    ]  # fmt: skip


def apiserver(root: Path, address: str, port: int, etcd_port: int, token: str) -> Command:
    """`token` makes an administrator. Certificates and the audit log (`audit.log`) lie in `root`."""
    tokens, key, policy = root / "tokens.csv", root / "service-accounts.pem", root / "audit-policy.yaml"
    tokens.write_text(f'{token},admin,admin,"system:masters"\n')
    key.write_text(_elliptic_key())
    policy.write_text(yaml.safe_dump(_AUDIT_POLICY))
    return [
        binary("kube-apiserver"), "--etcd-servers", f"http://{address}:{etcd_port}", "--bind-address", address,
        "--secure-port", str(port), "--advertise-address", address, "--cert-dir", root / "certificates",
        "--token-auth-file", tokens, "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.96.0.0/16",
        "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key,
        "--service-account-signing-key-file", key, "--audit-policy-file", policy, "--audit-log-path", root / "audit.log",
        # Without a controller-manager no namespace has a default service account, which this one insists on.
        "--disable-admission-plugins", "ServiceAccount",
        # Lets an address of 127.0.0.0/8 be advertised.
        "--endpoint-reconciler-type", "none",
    ]  # fmt: skip


def controllers(kubeconfig: Path, names: str) -> Command:
    """Only the named controllers: others would make objects that no test asked for."""
    return [
        binary("kube-controller-manager"), "--kubeconfig", kubeconfig, "--controllers", names,
        "--leader-elect=false", "--secure-port", "0",
    ]  # fmt: skip


def kubeconfig(path: Path, url: str, ca: Path, token: str) -> Path:
    """Written to `path`, for any client."""
    authority = base64.b64encode(ca.read_bytes()).decode()
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def _elliptic_key() -> str:
    """A fresh P-256 private key (RFC 5915, without the public part, which its reader computes)."""
    der = (
        bytes.fromhex("30310201010420") + b"\x01" + secrets.token_bytes(31) + bytes.fromhex("a00a06082a8648ce3d030107")
    )
    return f"-----BEGIN EC PRIVATE KEY-----\n{base64.b64encode(der).decode()}\n-----END EC PRIVATE KEY-----\n"
