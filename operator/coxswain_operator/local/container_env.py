"""A container's arguments and environment: references, mount paths and host names resolved."""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coxswain.errors import Refused
from coxswain_operator.local.volumes import Lookup, Mounts, NotMountable
from coxswain_operator.views import Manifest

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """As a kubelet does: `$(NAME)` of what is defined, `$$` is one `$`, and all else stays as it is."""
    return _REFERENCE.sub(lambda m: "$" if m[1] is None else variables.get(m[1], m[0]), text)


@dataclass(frozen=True, slots=True)
class ContainerEnv:
    """The environment of one container. `address` gives (and reserves) a host name's address."""

    pod: Manifest
    container: dict[str, Any]
    mounts: Mounts
    address: Callable[[str], str]
    lookup: Lookup

    def argv(self) -> tuple[str, ...]:
        """`python` is the interpreter of this process: no image brings another one."""
        words = [*self.container.get("command", ()), *self.container.get("args", ())]
        if not self.container.get("command"):
            name = self.container["name"]
            raise Refused(
                "NoCommand", f"container {name!r} has no `command`; the local cluster has no images to take one from"
            )
        own = self._own()
        argv = [self._resolve(expanded(word, own)) for word in words]
        self._check_words(argv)
        return (sys.executable, *argv[1:]) if argv[0] in ("python", "python3") else tuple(argv)

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """This process's environment, then the container's.

        PATH, HOME and the user's cloud credentials stay usable. As in the images, Python imports nothing from the
        current folder: that is the work directory, which may be a user's own with a `queue.py` in it.
        """
        own = self._own()
        self._check_variables(own)
        return {**inherited, "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1", **own}

    def _check_words(self, argv: Iterable[str]) -> None:
        if any("\0" in word for word in argv):
            message = f"container {self.container['name']!r}: a word of its command holds a NUL, which no process takes"
            raise Refused("BadCommand", f"{message}; remove it")

    def _check_variables(self, own: Mapping[str, str]) -> None:
        """Names no value: it may be a secret."""
        for name, value in own.items():
            if "=" in name or "\0" in name + value:
                what = f"container {self.container['name']!r}: variable {name!r}"
                why = "no process takes a name with '=', or a NUL in name or value"
                raise Refused("BadVariable", f"{what}: {why}; correct it, or mount it as a file")

    def _own(self) -> dict[str, str]:
        """The container's variables. They refer to those before them; what a reference brings is no text to expand."""
        own: dict[str, str] = {}
        for source in self.container.get("envFrom", ()):
            own |= self._all_of(source)
        for entry in self.container.get("env", ()):
            value = self._from(entry["valueFrom"]) if "valueFrom" in entry else expanded(entry.get("value", ""), own)
            if value is not None:
                own[entry["name"]] = self._resolve(value)
        return own

    def _all_of(self, source: dict[str, Any]) -> dict[str, str]:
        """Every key of an `envFrom`, behind its prefix."""
        kind, spec = next((k, v) for k, v in source.items() if k != "prefix")
        kind = "Secret" if kind == "secretRef" else "ConfigMap"
        holder = self.lookup(kind, spec["name"])
        if holder is None and not spec.get("optional"):
            raise NotMountable(f"envFrom: {kind} {spec['name']!r} does not exist")
        prefix = source.get("prefix", "")
        return {prefix + key: self._resolve(_text(kind, v)) for key, v in ((holder or {}).get("data") or {}).items()}

    def _resolve(self, text: str) -> str:
        return resolve_hosts(self.mounts.resolve(text), self.pod, self.address)

    def _from(self, source: dict[str, Any]) -> str | None:
        """None: it is optional, and absent."""
        if "fieldRef" in source:
            return field_of(self.pod, source["fieldRef"]["fieldPath"])
        kind, spec = next(iter(source.items()))
        if kind not in ("secretKeyRef", "configMapKeyRef"):
            raise Refused(
                "UnsupportedReference",
                f"env valueFrom {kind} needs Kubernetes; here: fieldRef, secretKeyRef, configMapKeyRef",
            )
        return self._key_of("Secret" if kind == "secretKeyRef" else "ConfigMap", spec)

    def _key_of(self, kind: str, spec: dict[str, Any]) -> str | None:
        holder = self.lookup(kind, spec["name"])
        if holder is None or spec["key"] not in holder.get("data", {}):
            if spec.get("optional"):
                return None
            raise NotMountable(f"{kind} {spec['name']!r} has no key {spec['key']!r}")
        return _text(kind, holder["data"][spec["key"]])


def _text(kind: str, value: str) -> str:
    """Bytes of a Secret that are no text reach the process as they are."""
    return os.fsdecode(base64.b64decode(value)) if kind == "Secret" else value


def resolve_hosts(text: str, pod: Manifest, address: Callable[[str], str]) -> str:
    """Replaces SUBDOMAIN-MEMBER.SUBDOMAIN of the pod's own subdomain, alone or as a URL's host, by that pod's address.

    Another name that ends like it is no pod's: a job may be called `dev`, `com` or `json`.
    """
    subdomain = pod["spec"].get("subdomain", "")
    if not subdomain:
        return text
    own, namespace = re.escape(subdomain), re.escape(pod["metadata"]["namespace"])
    host = rf"({own}-[-a-z0-9]*[a-z0-9])\.{own}(\.{namespace}(\.svc(\.cluster\.local)?)?)?"
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
