"""Kueue's manager on a control plane, with its webhooks on loopback."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import httpx

from bench.scale.control_plane import Plane
from bench.scale.peers.certificates import HOST, write_certificate
from bench.scale.peers.modules import definitions, reached_at, webhooks
from e2e.cluster.process import ReservedPort, wait_until

Manifest = dict[str, Any]
GROUP = "kueue.x-k8s.io"
STORED = "v1beta2"
_CONFIG = """apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
health: {healthProbeBindAddress: "%s:%s"}
metrics: {bindAddress: "0"}
webhook: {host: %s, port: %s, certDir: %s}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
integrations: {frameworks: [pod]}
resources: {excludeResourcePrefixes: [cpu, memory, ephemeral-storage, nvidia.com]}
featureGates: {VisibilityOnDemand: false}
"""
_UNSHARE = ("unshare", "--mount", "--propagation", "private", *(() if os.geteuid() == 0 else ("--map-root-user",)))
# It insists on certificates below /etc/kueue: in a mount namespace of its own that costs nothing.
_OWN_ETC = 'mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics && cp -r "$1" /etc/kueue/metrics/certs && shift && exec "$@"'


class Kueue:
    """Its manager, with its webhooks on loopback."""

    def __init__(self, plane: Plane, binary: Path, config: Path) -> None:
        self._http, self._plane, self._binary, self._config = plane.control.http, plane, binary, config
        self._folder = plane.root / "kueue"
        self._webhook, self._probe = ReservedPort(HOST), ReservedPort(HOST)

    def start(self) -> None:
        """Returns once it is ready and its webhooks answer."""
        self._folder.mkdir()
        certificate = write_certificate(self._folder / "certs", ("kueue",))
        url = f"https://{HOST}:{self._webhook.number}"
        for crd in definitions(tuple((self._config / "crd" / "bases").glob("*.yaml"))):
            client = {"url": f"{url}/convert", "caBundle": certificate.bundle}
            create(self._http, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", converted(crd, client))
        wait_until(functools.partial(_is_served, self._http), "Kueue's kinds", 60)
        self._launch()
        own = [of_our_kinds(one) for one in webhooks(self._config / "webhook")]
        for one in reached_at(url, certificate.bundle, own, "kueue"):
            create(self._http, f"/apis/admissionregistration.k8s.io/v1/{one['kind'].lower()}s", one)

    def _launch(self) -> None:
        certs, settings = self._folder / "certs", self._folder / "config.yaml"
        settings.write_text(_CONFIG % (HOST, self._probe.number, HOST, self._webhook.number, certs))
        start = [self._binary, "--kubeconfig", self._plane.control.kubeconfig, f"--config={settings}"]
        child = self._plane.run("kueue", [*_UNSHARE, "sh", "-c", _OWN_ETC, "sh", certs, *start])
        child.wait_until(self._is_ready, 120)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"http://{HOST}:{self._probe.number}/readyz", timeout=5, trust_env=False).is_success
        except httpx.TransportError:
            return False


def converted(crd: Manifest, client: Manifest) -> Manifest:
    """With the conversion of its versions by webhook, where it has several."""
    if len(crd["spec"]["versions"]) == 1:
        return crd
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": client}
    return {**crd, "spec": {**crd["spec"], "conversion": {"strategy": "Webhook", "webhook": webhook}}}


def of_our_kinds(configuration: Manifest) -> Manifest:
    """Without the webhooks of kinds of jobs that this Kueue is not to know."""
    ours = [h for h in configuration["webhooks"] if all(r["apiGroups"] in ([""], [GROUP]) for r in h["rules"])]
    return {**configuration, "webhooks": ours}


def _is_served(http: httpx.Client) -> bool:
    """Discovery, which a manager reads at its start, lags behind the definitions."""
    answer = http.get(
        "/apis", headers={"Accept": "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList"}
    )
    found = {
        resource["resource"]
        for group in answer.json()["items"]
        for version in group["versions"]
        for resource in version["resources"]
        if group["metadata"].get("name") == GROUP and version["version"] == STORED
    }
    return found >= {"workloads", "clusterqueues", "localqueues", "resourceflavors", "workloadpriorityclasses"}


def create(http: httpx.Client, path: str, manifest: Manifest) -> Manifest:
    answer = http.post(path, json=manifest)
    if not answer.is_success:
        raise RuntimeError(f"POST {path}: {answer.text}")
    created: Manifest = answer.json()
    return created
