"""A container's arguments and environment: references, mount paths and host names resolved."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coxswain.errors import Refused
from coxswain_operator.local.volumes import Lookup, Mounts, NotMountable
from coxswain_operator.views import Manifest

_VARIABLE = re.compile(r"\$\((\w+)\)")


@dataclass(frozen=True, slots=True)
class ContainerEnv:
    """The environment of one container. `address` gives (and reserves) a host name's address."""

    pod: Manifest
    container: dict[str, Any]
    mounts: Mounts
    address: Callable[[str], str]
    lookup: Lookup

    def argv(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """`python` is the interpreter of this process: no image brings another one."""
        words = [*self.container.get("command", ()), *self.container.get("args", ())]
        if not self.container.get("command"):
            name = self.container["name"]
            raise Refused(
                "NoCommand", f"container {name!r} has no `command`; the local cluster has no images to take one from"
            )
        argv = [self._resolve(_VARIABLE.sub(lambda m: environment.get(m[1], m[0]), w)) for w in words]
        return (sys.executable, *argv[1:]) if argv[0] in ("python", "python3") else tuple(argv)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """This process's environment, then the container's.

        PATH, HOME and the user's cloud credentials stay usable.
        """
        environment = {**inherited, "PYTHONUNBUFFERED": "1"}
        for entry in self.container.get("env", ()):
            value = self._from(entry["valueFrom"]) if "valueFrom" in entry else entry.get("value", "")
            value = _VARIABLE.sub(lambda m: environment.get(m[1], m[0]), value)
            environment[entry["name"]] = self._resolve(value)
        return environment

    def _resolve(self, text: str) -> str:
        return resolve_hosts(self.mounts.resolve(text), self.pod, self.address)

    def _from(self, source: dict[str, Any]) -> str:
        if "fieldRef" in source:
            return field_of(self.pod, source["fieldRef"]["fieldPath"])
        kind, spec = next(iter(source.items()))
        if kind not in ("secretKeyRef", "configMapKeyRef"):
            raise Refused(
                "UnsupportedReference",
                f"env valueFrom {kind} needs Kubernetes; here: fieldRef, secretKeyRef, configMapKeyRef",
            )
        return self._key_of("Secret" if kind == "secretKeyRef" else "ConfigMap", spec)

    def _key_of(self, kind: str, spec: dict[str, Any]) -> str:
        holder = self.lookup(kind, spec["name"])
        if holder is None or spec["key"] not in holder.get("data", {}):
            raise NotMountable(f"{kind} {spec['name']!r} has no key {spec['key']!r}")
        value: str = holder["data"][spec["key"]]
        return base64.b64decode(value).decode() if kind == "Secret" else value


def resolve_hosts(text: str, pod: Manifest, address: Callable[[str], str]) -> str:
    """Replaces HOSTNAME.SUBDOMAIN of the pod's own subdomain, alone or as a URL's host, by that
    pod's address.
    """
    subdomain = pod["spec"].get("subdomain", "")
    if not subdomain:
        return text
    namespace = re.escape(pod["metadata"]["namespace"])
    host = rf"([a-z0-9][-a-z0-9]*)\.{re.escape(subdomain)}(\.{namespace}(\.svc(\.cluster\.local)?)?)?"
    return re.sub(rf"(^|(?<=://)){host}(?=[:/]|$)", lambda m: address(f"{m[2]}.{subdomain}"), text)


def host_of(pod: Manifest) -> str:
    """The pod's host name for other pods."""
    spec = pod["spec"]
    if spec.get("subdomain"):
        return f"{spec.get('hostname') or pod['metadata']['name']}.{spec['subdomain']}"
    return str(pod["metadata"]["name"])


def field_of(pod: Manifest, path: str) -> str:
    """The downward API's `fieldPath`."""
    if keyed := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str(pod["metadata"].get(keyed[1], {}).get(keyed[2], ""))
    value: Any = pod
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return str(value)
