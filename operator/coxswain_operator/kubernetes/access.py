"""Address and credentials of an API server: from a kubeconfig, or from the pod's own service account."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from coxswain.errors import Refused
from coxswain_operator.kubernetes.remembered import Remembered
from coxswain_operator.kubernetes.trust import SYSTEM, Trust

# What the client library raises for a kubeconfig of another shape.
_MALFORMED = (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, RecursionError)
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HEADER_SECONDS = 1.0  # for which the value of the Authorization header is remembered
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


def _anonymous() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is, and what a caller shows it."""

    url: str
    trust: Trust = SYSTEM
    authorization: Callable[[], str] = _anonymous
    """The header's value, renewed if it was about to expire; empty for access by certificate."""
    namespace: str = "default"
    """That of the kubeconfig's context, or of the pod."""
    proxy: str | None = None
    is_outdated: Callable[[], bool] = lambda: False
    """Whether the file of the authorities has changed since it was read."""


def find_access(
    kubeconfig: Path | None = None,
    account: Path = ACCOUNT,
    environment: Mapping[str, str] = os.environ,
    context: str = "",
) -> Access:
    """Of the operator: by the kubeconfig or its context if one is named, else by this pod's service account, else by the
    user's kubeconfig.

    Raises Refused when none of them can be read.
    """
    if kubeconfig is None and not context and (access := _of_pod(account, environment)):
        return access
    return _of_kubeconfig(kubeconfig, context)


def users_access(
    kubeconfig: Path | None = None,
    context: str = "",
    account: Path = ACCOUNT,
    environment: Mapping[str, str] = os.environ,
) -> Access:
    """Of a person: by the kubeconfig that is named, else KUBECONFIG's, else ~/.kube/config, else by this pod's account."""
    return find_access(kubeconfig or _users_kubeconfig(environment), account, environment, context)


def _users_kubeconfig(environment: Mapping[str, str]) -> Path | None:
    if named := environment.get("KUBECONFIG"):
        return Path(named)  # or several, between colons
    own = Path(os.path.expanduser("~/.kube/config"))  # noqa: PTH111  a pod's user may have no home: no error
    return own if own.exists() else None


def _of_pod(account: Path, environment: Mapping[str, str]) -> Access | None:
    """None outside of pods, and in pods that mount no token."""
    host, port = environment.get(HOST, ""), environment.get(PORT, "")
    token, ca = account / "token", account / "ca.crt"
    if not (host and port and token.is_file() and ca.is_file()):
        return None
    where = f"[{host}]" if ":" in host else host
    # Read each time, since the kubelet renews it; the file is in memory.
    own, authorities = account / "namespace", ca.read_bytes()
    return Access(
        f"https://{where}:{port}",
        Trust(authorities),
        authorization=lambda: f"Bearer {token.read_text().strip()}",
        namespace=own.read_text().strip() if own.is_file() else "default",
        is_outdated=lambda: ca.read_bytes() != authorities,
    )


def _of_kubeconfig(path: Path | None, context: str) -> Access:
    """The client library reads the file, runs log-in commands and renews tokens; the calls themselves are ours."""
    from kubernetes import client, config  # half a CPU second, which a pod need not spend
    from kubernetes.config import kube_config

    configuration: Any = client.Configuration()
    library: Any = kube_config  # has types, but not for this
    place = str(path or library.KUBE_CONFIG_DEFAULT_LOCATION)
    try:
        merged = library.KubeConfigMerger(place).config
        chosen = _context(merged, context)
        cluster, user = _part(merged, chosen, "cluster"), _part(merged, chosen, "user")
        _check_supported(cluster, user)
        with _vanishing_folder() as folder:
            library.load_kube_config(place, chosen["name"], configuration, temp_file_path=folder)
            trust = _trust(configuration, cluster)
    except (config.ConfigException, OSError, *_MALFORMED) as error:
        why = f"{path or 'neither a service account nor a kubeconfig'}: {' '.join(str(error).split())}"
        way_out = "name a kubeconfig with --kubeconfig, or run in a pod with a service account"
        raise Refused("NoClusterAccess", f"{why}; {way_out}") from error
    return Access(
        url=str(configuration.host).rstrip("/"),
        trust=trust,
        authorization=remember_header(
            lambda: str(configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or "")
        ),
        namespace=str((chosen.get("context") or {}).get("namespace") or "default"),
        proxy=str(cluster.get("proxy-url") or "") or None,
    )


@contextmanager
def _vanishing_folder() -> Iterator[str]:
    """Where the library writes keys and certificates that a kubeconfig contains: it would keep them until this process ends,
    and a process that is killed for ever. The library makes the folder if it has something to write."""
    folder = Path(tempfile.gettempdir()) / f"coxswain-kubeconfig-{secrets.token_hex(8)}"
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _trust(configuration: Any, cluster: Mapping[str, Any]) -> Trust:
    """Read now: of what the files contain, the library keeps only names."""
    certificate, key = _content(configuration.cert_file), _content(configuration.key_file)
    identity = None if certificate is None else b"\n".join(filter(None, (certificate, key)))
    server_name = str(cluster.get("tls-server-name") or "") or None
    return Trust(_content(configuration.ssl_ca_cert), configuration.verify_ssl, identity, server_name)


def _content(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def remember_header(look: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> Callable[[], str]:
    """The header's value, looked up once in HEADER_SECONDS: the library sets up its whole configuration each time."""
    headers = Remembered[str, str](HEADER_SECONDS, clock)

    def value() -> str:
        if "" not in headers:
            headers[""] = look()
        return headers[""]

    return value


def _context(merged: Any, name: str) -> Mapping[str, Any]:
    """The context of that name, without one the current context. Raises Refused for a name that the kubeconfig lacks."""
    if merged is None:
        raise ValueError("no kubeconfig there")
    found = {str(node.value["name"]): node.value for node in merged.value["contexts"]}
    current = name or str(merged.value.get("current-context") or "")
    if current not in found:
        known = ", ".join(sorted(found)) or "none"
        raise Refused("NoSuchContext", f"the kubeconfig has no context {current!r}; its contexts: {known}")
    context: Mapping[str, Any] = found[current]
    return context


def _part(merged: Any, context: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The cluster or the user that a context names; empty without one."""
    name = (context.get("context") or {}).get(kind)
    found: Any = next((node.value for node in merged.value[f"{kind}s"] if node.value["name"] == name), {})
    part: Mapping[str, Any] = found.get(kind) or {}
    return part


def _check_supported(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> None:
    """Raises Refused for a field that changes which server is asked, or in whose name, and that is not known here."""
    scheme = urlsplit(str(cluster.get("proxy-url") or "http:")).scheme
    if scheme not in ("http", "https"):
        message = f"proxy-url of the kubeconfig's cluster has the scheme {scheme!r}; give a proxy of http or https"
        raise Refused("ProxyUnsupported", message)
    if scheme == "https" and cluster.get("tls-server-name"):
        message = (
            "the kubeconfig's cluster has tls-server-name and a proxy-url of https: both would have to bear that name"
        )
        raise Refused("ProxyUnsupported", f"{message}; give a proxy of http, or leave tls-server-name off")
    for field in user:
        if field == "as" or field.startswith("as-"):
            message = f"the kubeconfig's user has {field!r}: acting as another user is not supported; name a user's own access"
            raise Refused("ImpersonationUnsupported", message)
