"""Address and credentials of an API server: from a kubeconfig, or from the pod's own service account."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coxswain.errors import Refused

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


def _anonymous() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Access:
    """Files by name: of the authorities to believe, of the client's certificate and its key."""

    url: str
    ca: str | None = None
    verify: bool = True
    certificate: str | None = None
    key: str | None = None
    authorization: Callable[[], str] = _anonymous
    """The header's value, renewed if it was about to expire; empty for access by certificate."""

    def trust(self) -> ssl.SSLContext:
        """Which servers to believe, and the client's certificate if it has one."""
        context = ssl.create_default_context(cafile=self.ca)
        if not self.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key)
        return context


def find_access(
    kubeconfig: Path | None = None, account: Path = ACCOUNT, environment: Mapping[str, str] = os.environ
) -> Access:
    """By the kubeconfig if one is named, else by the service account of this pod, else by the user's kubeconfig.

    Raises Refused when none of them can be read.
    """
    if kubeconfig is None and (access := _of_pod(account, environment)):
        return access
    return _of_kubeconfig(kubeconfig)


def _of_pod(account: Path, environment: Mapping[str, str]) -> Access | None:
    """None outside of pods, and in pods that mount no token."""
    host, port = environment.get(HOST, ""), environment.get(PORT, "")
    token, ca = account / "token", account / "ca.crt"
    if not (host and port and token.is_file() and ca.is_file()):
        return None
    where = f"[{host}]" if ":" in host else host
    # Read each time, since the kubelet renews it; the file is in memory.
    return Access(f"https://{where}:{port}", str(ca), authorization=lambda: f"Bearer {token.read_text().strip()}")


def _of_kubeconfig(path: Path | None) -> Access:
    """The client library reads the file, runs log-in commands and renews tokens; the calls themselves are ours."""
    from kubernetes import client, config  # half a CPU second, which a pod need not spend

    configuration: Any = client.Configuration()
    library: Any = config  # has types, but not for this
    try:
        library.load_kube_config(path and str(path), client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        place = path or "neither a service account nor a kubeconfig"
        message = f"{place}: {error}; name a kubeconfig with --kubeconfig, or run in a pod with a service account"
        raise Refused("NoClusterAccess", message) from error
    return Access(
        url=str(configuration.host).rstrip("/"),
        ca=configuration.ssl_ca_cert,
        verify=configuration.verify_ssl,
        certificate=configuration.cert_file,
        key=configuration.key_file,
        authorization=lambda: str(configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""),
    )
