"""The operators of an installation: the leader, disruptions of one of them, and their objects in the cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from e2e.provision import SYSTEM, Site, eventually

LEASE = "coxswain-operator"
_ALWAYS = {"configmap/kube-root-ca.crt", "serviceaccount/default"}  # Kubernetes' own, in every namespace


@dataclass(frozen=True)
class Operators:
    site: Site

    def lease(self) -> dict[str, Any]:
        """Its spec."""
        found: dict[str, Any] = json.loads(self._kubectl("get", "lease", LEASE, "-o", "json"))["spec"]
        return found

    def leader(self) -> str:
        """Name of the leader's pod."""
        holder: str = eventually(lambda: self.lease().get("holderIdentity"), "an operator leads", 60)
        return holder.rpartition("_")[0]

    def pod(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._kubectl("get", "pod", name, "-o", "json"))
        return found

    def kill(self, name: str) -> None:
        """SIGKILL to the process, which the kubelet then starts again; returns when it is ready."""
        before = self.pod(name)
        (container,) = before["status"]["containerStatuses"]
        identifier = container["containerID"].rpartition("/")[2]
        self.site.cluster.node(before["spec"]["nodeName"]).ctr("tasks", "kill", "--signal", "SIGKILL", identifier)

        def back() -> bool:
            (now,) = self.pod(name)["status"]["containerStatuses"]
            return now.get("containerID", container["containerID"]) != container["containerID"] and bool(now["ready"])

        eventually(back, f"{name} is back", 120)

    def delete(self, name: str) -> None:
        """At once and without a farewell; returns when another leads."""
        self._kubectl("delete", "pod", name, "--force", "--grace-period=0")
        eventually(lambda: self.leader() != name, f"another than {name} leads", 60)

    def image(self) -> str:
        path = "jsonpath={.spec.template.spec.containers[0].image}"
        return self._kubectl("get", "deployment", "coxswain", "-o", path)

    def remains(self) -> set[str]:
        """All that is there of an installation, as `kind/name`: what is named after it, and what its namespace holds."""
        everywhere = self.site.kubectl("get", ",".join(kinds(self.site, False)), "-o", "name").split()
        return {*(name for name in everywhere if "coxswain" in name), *everything(self.site, SYSTEM)}

    def _kubectl(self, *arguments: str) -> str:
        return self.site.kubectl("-n", SYSTEM, *arguments)


def everything(site: Site, namespace: str) -> set[str]:
    """All objects of a namespace, as `kind/name`, but for those that every namespace has, and events, which expire."""
    found = site.kubectl("-n", namespace, "get", ",".join(kinds(site, True)), "-o", "name").split()
    return {name for name in found if name not in _ALWAYS and not name.startswith("event")}


def kinds(site: Site, namespaced: bool) -> list[str]:
    """All that the API server can list."""
    flags = ["--verbs=list", f"--namespaced={str(namespaced).lower()}", "-o", "name"]
    return site.kubectl("api-resources", *flags).split()
