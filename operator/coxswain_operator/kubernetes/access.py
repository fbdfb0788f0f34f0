"""Address and credentials of an API server: from a kubeconfig, or from the pod's own service account."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config

from coxswain.errors import Refused

_LIBRARY: Any = config  # has types, but not for these


@dataclass(frozen=True, slots=True)
class Access:
    """The client library reads the files, runs log-in commands and renews tokens; the calls themselves are ours."""

    configuration: Any

    @property
    def url(self) -> str:
        return str(self.configuration.host).rstrip("/")

    def authorization(self) -> str:
        """The header's value, renewed if it was about to expire; empty for access by certificate."""
        return str(self.configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or "")

    def trust(self) -> ssl.SSLContext:
        """Which servers to believe, and the client's certificate if it has one."""
        c = self.configuration
        context = ssl.create_default_context(cafile=c.ssl_ca_cert)
        if not c.verify_ssl:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if c.cert_file:
            context.load_cert_chain(c.cert_file, c.key_file)
        return context


def find_access(kubeconfig: Path | None = None) -> Access:
    """By the kubeconfig if one is named, else by the service account of this pod, else by the user's kubeconfig.

    Raises Refused when none of them can be read.
    """
    configuration = client.Configuration()
    try:
        if kubeconfig is not None:
            _LIBRARY.load_kube_config(str(kubeconfig), client_configuration=configuration)
        else:
            _load_own(configuration)
    except (config.ConfigException, OSError) as error:
        place = kubeconfig or "neither a service account nor a kubeconfig"
        message = f"{place}: {error}; name a kubeconfig with --kubeconfig, or run in a pod with a service account"
        raise Refused("NoClusterAccess", message) from error
    return Access(configuration)


def _load_own(configuration: Any) -> None:
    try:
        _LIBRARY.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:  # not in a pod
        _LIBRARY.load_kube_config(client_configuration=configuration)
