"""A rival's manager: its process, with its webhooks on loopback, and what has to be installed for
it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.scale.control_plane import Plane
from bench.scale.peers.certificates import HOST, Certificate, write_certificate
from bench.scale.peers.modules import Manifest, definitions, reached_at, webhooks
from e2e.cluster.access import private
from e2e.cluster.process import Child, ReservedPort, binary, wait_until

_ANYWHERE = "0.0.0.0"  # where these managers serve webhooks, whatever one asks for
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_SERVED = "k8s-webhook-server/serving-certs"  # below /tmp, a constant of theirs
_UNSHARE = ("unshare", "--mount", "--propagation", "private", *(() if os.geteuid() == 0 else ("--map-root-user",)))
# A mount namespace in which a folder of the bench lies over /tmp. The binary is opened before: it
# may lie below /tmp.
_OVER_TMP = 'exec 3<"$1" && mount --bind "$2" /tmp && shift 2 && exec /proc/self/fd/3 "$@"'


@dataclass(frozen=True)
class Parts:
    """The parts of a manager. `names`: of its certificate; `secret`: its rotator's, with namespace."""

    tool: str
    crds: tuple[Path, ...]
    hooks: Path
    names: tuple[str, ...]
    secret: tuple[str, str] | None = None


class Manager:
    """One process at a time; `launch`, `ready` and `kill` may follow each other any number of
    times.
    """

    def __init__(self, plane: Plane, parts: Parts) -> None:
        self._plane, self._parts, self._starts = plane, parts, 0
        self._webhook, self._probe = ReservedPort(_ANYWHERE), ReservedPort(HOST)
        self.webhook_port = self._webhook.number
        self.folder = plane.root / parts.tool  # its /tmp
        self.processes: list[Child] = []

    def prepare(self) -> None:
        """Installs definitions, webhooks and certificate, once on a plane."""
        if self.folder.exists():
            return
        self.folder.mkdir()
        kubeconfig = self._plane.control.kubeconfig_of(self._parts.tool)
        private(self.folder / "kubeconfig").write_bytes(kubeconfig.read_bytes())
        certificate = write_certificate(self.folder / _SERVED, self._parts.names)
        for crd in definitions(self._parts.crds):
            self._create(_CRDS, crd)
            wait_until(functools.partial(self._served, crd), crd["metadata"]["name"])
        if self._parts.secret is not None:
            self._give_to_rotator(certificate, *self._parts.secret)
        url = f"https://{HOST}:{self.webhook_port}"
        for one in reached_at(url, certificate.bundle, webhooks(self._parts.hooks), self._parts.tool):
            self._create(f"{_ADMISSION}/{one['kind'].lower()}s", one)

    def launch(self, arguments: Sequence[str]) -> None:
        self._starts += 1
        tool, environment = self._parts.tool, {**os.environ, "TMPDIR": "/tmp"}
        alone = [*_UNSHARE, "sh", "-c", _OVER_TMP, "sh", binary(tool), self.folder]
        child = self._plane.run(f"{tool}-{self._starts}", [*alone, *self._common(), *arguments], environment)
        self.processes = [child]

    def ready(self, trial: str, manifest: Manifest) -> None:
        """Returns once it is, and its webhooks let `manifest` pass on its way to the path `trial`;
        it is not kept.
        """
        self.processes[0].wait_until(lambda: self._is_ready() and self.passes(trial, manifest), 60)

    def kill(self) -> None:
        """SIGKILL of what runs."""
        while self.processes:
            self.processes.pop().stop()

    def passes(self, path: str, manifest: Manifest) -> bool:
        """Whether it would be accepted."""
        return self._plane.control.http.post(path, params={"dryRun": "All"}, json=manifest).is_success

    def _common(self) -> list[str]:
        probe = f"--health-probe-bind-address={HOST}:{self._probe.number}"
        return ["--kubeconfig=/tmp/kubeconfig", probe, "--zap-log-level=info"]

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"http://{HOST}:{self._probe.number}/readyz", timeout=5, trust_env=False).is_success
        except httpx.TransportError:
            return False

    def _served(self, crd: Manifest) -> bool:
        spec = crd["spec"]
        paths = (f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}" for version in spec["versions"])
        return all(self._plane.control.http.get(path).is_success for path in paths)

    def _give_to_rotator(self, certificate: Certificate, namespace: str, name: str) -> None:
        self._create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        self._create(f"/api/v1/namespaces/{namespace}/secrets", certificate.secret(namespace, name))

    def _create(self, path: str, manifest: Manifest) -> None:
        answer = self._plane.control.http.post(path, json=manifest)
        if not answer.is_success:
            raise RuntimeError(f"POST {path}: {answer.text}")
