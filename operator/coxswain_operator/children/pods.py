"""Builds the pods of the three roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from coxswain import names
from coxswain.api.field_errors import FieldError
from coxswain.api.pod_template import OWN, split_template
from coxswain.api.resolve import claims, is_written
from coxswain.config import JobConfig
from coxswain_operator.children import containers, gangs, scheduling, template_policy
from coxswain_operator.children.common import owner_of
from coxswain_operator.children.configuration import config_map_name
from coxswain_operator.children.containers import CONSTRUCTOR, COORDINATOR, LOADER, TRAINER, Service
from coxswain_operator.children.job_token import former_name
from coxswain_operator.children.overlay import hardened, overlaid
from coxswain_operator.settings import Settings
from coxswain_operator.views import Manifest

GRACE_SECONDS = 60  # to finish a request or a checkpoint's upload after SIGTERM
_GRACE = "terminationGracePeriodSeconds"  # without any, a pod is gone for the API server while its processes still run
_FIELDS = {
    "coordinator": "data",
    "loader": "data",
    "trainer": "trainers",
}  # of the job's spec, with the role's template
SERVICES = {"coordinator": COORDINATOR, "loader": LOADER, "trainer": TRAINER}
# A user's template cannot change these: restarts, addresses and the isolation of pods need them.
FIXED = ("restartPolicy", "hostname", "subdomain", "automountServiceAccountToken")
ANNOTATIONS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}


@dataclass(frozen=True)
class PodPlan:
    """All pods of one start of a gang.

    Their common parts are built once and shared: do not change their manifests.
    """

    job: Manifest
    config: JobConfig
    settings: Settings
    attempt: int
    start: int  # number of the start: a queue admits its pods together
    pin: str = ""  # names the attempt's ConfigMap
    token_secret: str = ""  # name of the Secret with their token; empty: the former one
    avoid: tuple[str, ...] = ()  # nodes that are quarantined
    pod_sets: Mapping[str, str] = field(default_factory=dict)  # Kueue's names of roles, where not the role's own

    def name(self, member: str, number: int) -> str:
        return f"{self.job['metadata']['name']}-{member}-{number}"

    def pod(self, member: str, number: int) -> Manifest:
        """The pod of one member's incarnation.

        Its host name has no incarnation number, so that the coordinator keeps its name.
        """
        role, _, digits = member.partition("-")
        head = self._heads[role]
        own = {names.LABEL_INDEX: digits or "0", names.LABEL_INCARNATION: str(number)}
        metadata = {**head, "name": self.name(member, number), "labels": {**head["labels"], **own}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": self._spec(role, member, digits, number),
        }

    def _spec(self, role: str, member: str, digits: str, number: int) -> Manifest:
        spec = self._specs[role]
        own = {names.ENV_NAME: member, names.ENV_INDEX: digits or "0", names.ENV_INCARNATION: str(number)}
        own |= {names.ENV_CONFIG: self._config_map}
        lists: Manifest = {k: [_named(c, own) for c in spec[k]] for k in ("initContainers", "containers") if k in spec}
        return {**spec, **lists, "hostname": f"{self.job['metadata']['name']}-{member}"}

    @cached_property
    def _config_map(self) -> str:
        return config_map_name(self.job, self.pin)

    @cached_property
    def _heads(self) -> dict[str, Manifest]:
        """Metadata by role."""
        return {role: self._head(role) for role in SERVICES}

    def _head(self, role: str) -> Manifest:
        labels = {"app.kubernetes.io/component": role, names.LABEL_ROLE: role, names.LABEL_ATTEMPT: str(self.attempt)}
        queue_labels, queue_annotations = scheduling.queue(
            self.job, self.config, self.start, self.pod_sets.get(role, role)
        )
        head, theirs = owner_of(self.job), template_of(self.job, role)[0]
        gang_labels, gang_annotations, _ = self._gang(role)
        head["labels"] = {**(theirs.get("labels") or {}), **head["labels"], **labels, **queue_labels, **gang_labels}
        annotations = {**ANNOTATIONS, **(theirs.get("annotations") or {}), **queue_annotations, **gang_annotations}
        avoids = {names.ANNOTATION_AVOIDS: ",".join(self.avoid)} if self.avoid else {}
        return {**head, "annotations": {**annotations, **avoids}}

    def _gang(self, role: str) -> tuple[dict[str, str], dict[str, str], Manifest]:
        return gangs.of_pod(self.job, self.settings, role, self.start)

    def spec_of(self, role: str) -> Manifest:
        """What the role's pods have in common."""
        return self._specs[role]

    def template_faults(self, enforced: str) -> list[FieldError]:
        """What the templates set and nothing admits. `enforced`: the Pod Security level that the namespace names, or empty."""
        found: list[FieldError] = []
        scheduling = self.job["spec"].get("scheduling") or {}
        for role in SERVICES:
            if given_template(self.job, role) or scheduling.get("priorityClassName"):
                pod = {"metadata": self._heads[role], "spec": self._specs[role]}
                path = f"spec.{_FIELDS[role]}.template"
                found += template_policy.forbidden(
                    path, given_template(self.job, role), pod, self.settings.templates, enforced
                )
        return template_policy.distinct(found)

    @cached_property
    def _specs(self) -> dict[str, Manifest]:
        return {role: self._spec_of(role) for role in SERVICES}

    def _spec_of(self, role: str) -> Manifest:
        """A role's pod spec with the user's template over it."""
        spec = {
            "restartPolicy": "Never",
            "subdomain": self.job["metadata"]["name"],
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            _GRACE: GRACE_SECONDS,
            "securityContext": _security(self.settings),
            **_containers(self.job, self.config, self.settings, role),
            "volumes": _volumes(self.config, role, self._config_map, self.token_secret or former_name(self.job)),
            **scheduling.of_pod(self.job, role, self.attempt),
            **self._gang(role)[2],
        }
        others = tuple(name for name in OWN[_FIELDS[role]] if name not in (role, CONSTRUCTOR.name))
        laid = scheduling.avoiding(
            _on_network(hardened(overlaid(spec, template_of(self.job, role)[1], others))), self.avoid
        )
        fixed = {k: spec[k] for k in FIXED if k in spec}
        return {**{k: v for k, v in laid.items() if k not in FIXED}, **fixed, _GRACE: max(1, laid[_GRACE])}


def given_template(job: Manifest, role: str) -> Manifest:
    """The user's template of a role as it is."""
    return (job["spec"].get(_FIELDS[role]) or {}).get("template") or {}


def template_of(job: Manifest, role: str) -> tuple[Manifest, Manifest]:
    """Metadata and pod spec that the user lays over the role's pods."""
    return split_template(given_template(job, role), SERVICES[role].name)


def _on_network(spec: Manifest) -> Manifest:
    """On the node's network names of Services resolve only by a policy of their own, and torch must find the pod's address."""
    if not spec.get("hostNetwork"):
        return spec
    own = {names.ENV_HOST_NETWORK: "true"}
    lists: Manifest = {k: [_named(c, own) for c in spec[k]] for k in ("initContainers", "containers") if k in spec}
    return {"dnsPolicy": "ClusterFirstWithHostNet", **spec, **lists}


def _named(container: Manifest, own: dict[str, str]) -> Manifest:
    """With environment that a template cannot change, such as what differs between members."""
    env = [e for e in container.get("env") or () if e["name"] not in own]
    return {**container, "env": [*({"name": k, "value": v} for k, v in own.items()), *env]}


def _security(settings: Settings) -> dict[str, Any]:
    ids = () if settings.templates.platform_user else ("runAsUser", "runAsGroup", "fsGroup")
    groups = {"fsGroupChangePolicy": "OnRootMismatch"}  # else each start goes through all files of a volume
    own = dict.fromkeys(ids, settings.user)
    return {"runAsNonRoot": True, **own, **groups, "seccompProfile": {"type": "RuntimeDefault"}}


def _containers(job: Manifest, config: JobConfig, settings: Settings, role: str) -> dict[str, list[dict[str, Any]]]:
    mounts = _mounts(config, role)
    data_image = job["spec"].get("data", {}).get("image") or settings.data_image

    def make(service: Service, image: str) -> dict[str, Any]:
        return containers.container(service, job, config, image, settings.pull_policy, mounts)

    if role == "trainer":
        image = job["spec"].get("image") or settings.train_image
        sidecar = {**make(CONSTRUCTOR, data_image), "restartPolicy": "Always"}
        return {"initContainers": [sidecar], "containers": [make(TRAINER, image)]}
    return {"containers": [make(SERVICES[role], data_image)]}


def _volumes(config: JobConfig, role: str, config_map: str, token_secret: str) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "job", "configMap": {"name": config_map}},
        {"name": "token", "secret": {"secretName": token_secret, "defaultMode": 0o440}},
        {"name": "scratch", "emptyDir": {}},
    ]
    volumes += [
        {"name": f"secret-{n}", "secret": {"secretName": name, "defaultMode": 0o440}}
        for n, name in enumerate(containers.endpoint_secrets(config))
    ]
    volumes += [
        {"name": f"claim-{n}", "persistentVolumeClaim": {"claimName": claim, "readOnly": not is_written(config, claim)}}
        for n, claim in enumerate(claims(config))
    ]
    volumes += [{"name": "run", "emptyDir": {}}] if role == "coordinator" else []
    volumes += [{"name": "shm", "emptyDir": {"medium": "Memory"}}] if role == "trainer" else []
    return volumes


def _mounts(config: JobConfig, role: str) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "job", "mountPath": containers.JOB_DIR, "readOnly": True},
        {"name": "token", "mountPath": containers.TOKEN_DIR, "readOnly": True},
        {"name": "scratch", "mountPath": containers.SCRATCH_DIR},
    ]
    mounts += [
        {"name": f"secret-{n}", "mountPath": f"{containers.SECRETS_DIR}/{name}", "readOnly": True}
        for n, name in enumerate(containers.endpoint_secrets(config))
    ]
    mounts += [
        {"name": f"claim-{n}", "mountPath": f"{names.CLAIMS_ROOT}/{claim}"} for n, claim in enumerate(claims(config))
    ]
    mounts += [{"name": "run", "mountPath": containers.RUN_DIR}] if role == "coordinator" else []
    mounts += [{"name": "shm", "mountPath": "/dev/shm"}] if role == "trainer" else []
    return mounts
