"""Pods of the three roles."""

from __future__ import annotations

from typing import Any

from coxswain import names
from coxswain.api.resolve import CLAIMS_ROOT, claims
from coxswain.config import JobConfig
from coxswain_operator.children import containers
from coxswain_operator.children.common import child
from coxswain_operator.children.configuration import config_map_name, secret_name
from coxswain_operator.children.containers import CONSTRUCTOR, COORDINATOR, LOADER, TRAINER, Service
from coxswain_operator.children.overlay import merged
from coxswain_operator.cluster import Manifest
from coxswain_operator.settings import Settings

GRACE_SECONDS = 60  # to finish a request or a checkpoint's upload after SIGTERM


def pod(job: Manifest, config: JobConfig, settings: Settings, member: str, number: int, attempt: int) -> Manifest:
    """The pod of one member's incarnation. Its host name does not carry the number: addresses outlive pods."""
    role, _, digits = member.partition("-")
    index, name = int(digits or 0), job["metadata"]["name"]
    spec = {
        "restartPolicy": "Never",
        "hostname": f"{name}-{member}",
        "subdomain": name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": _security(settings),
        **_containers(job, config, settings, role, member, index),
        "volumes": _volumes(job, config, role),
    }
    priority = job["spec"].get("scheduling", {}).get("priorityClassName", "")
    spec |= {"priorityClassName": priority} if priority else {}
    spec = _overlaid(spec, job) if role == "trainer" else spec
    manifest = child(job, "v1", "Pod", pod_name(name, member, number), {"spec": spec})
    manifest["metadata"]["labels"] |= {
        "app.kubernetes.io/component": role,
        names.LABEL_ROLE: role,
        names.LABEL_INDEX: str(index),
        names.LABEL_INCARNATION: str(number),
        names.LABEL_ATTEMPT: str(attempt),
    }
    manifest["metadata"]["annotations"] |= {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }
    return manifest


def pod_name(job: str, member: str, number: int) -> str:
    return f"{job}-{member}-{number}"


def _security(settings: Settings) -> dict[str, Any]:
    user = settings.user
    return {
        "runAsNonRoot": True, "runAsUser": user, "runAsGroup": user, "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip


def _containers(
    job: Manifest, config: JobConfig, settings: Settings, role: str, member: str, index: int
) -> dict[str, list[dict[str, Any]]]:
    mounts = _mounts(config, role)
    data_image = job["spec"].get("data", {}).get("image") or settings.data_image

    def make(service: Service, image: str) -> dict[str, Any]:
        return containers.container(service, job, member, index, image, settings.pull_policy, mounts)

    if role == "trainer":
        image = job["spec"].get("image") or settings.train_image
        sidecar = {**make(CONSTRUCTOR, data_image), "restartPolicy": "Always"}
        return {"initContainers": [sidecar], "containers": [make(TRAINER, image)]}
    main = make(COORDINATOR if role == "coordinator" else LOADER, data_image)
    if role == "loader":
        main["ports"] = [*main["ports"], {"name": "flight", "containerPort": names.PORT_LOADER}]
    return {"containers": [main]}


def _volumes(job: Manifest, config: JobConfig, role: str) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "job", "configMap": {"name": config_map_name(job)}},
        {"name": "token", "secret": {"secretName": secret_name(job), "defaultMode": 0o440}},
        {"name": "scratch", "emptyDir": {}},
    ]
    volumes += [
        {"name": f"secret-{n}", "secret": {"secretName": name, "defaultMode": 0o440}}
        for n, name in enumerate(containers.endpoint_secrets(config))
    ]
    volumes += [{"name": f"claim-{n}", "persistentVolumeClaim": {"claimName": c}} for n, c in enumerate(claims(config))]
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
    mounts += [{"name": f"claim-{n}", "mountPath": f"{CLAIMS_ROOT}/{claim}"} for n, claim in enumerate(claims(config))]
    mounts += [{"name": "run", "mountPath": containers.RUN_DIR}] if role == "coordinator" else []
    mounts += [{"name": "shm", "mountPath": "/dev/shm"}] if role == "trainer" else []
    return mounts


def _overlaid(spec: dict[str, Any], job: Manifest) -> dict[str, Any]:
    """The user's template over ours. `resources` and `env` at its top are the trainer container's."""
    template = dict(job["spec"]["trainers"].get("template") or {})
    own = {k: template.pop(k) for k in ("resources", "env") if k in template}
    laid: dict[str, Any] = merged(spec, template)
    if own:
        laid = merged(laid, {"containers": [{"name": TRAINER.name, **own}]})
    # What restarts, addresses and the isolation of pods rest on is not the user's to change.
    fixed = ("restartPolicy", "hostname", "subdomain", "automountServiceAccountToken")
    return {**laid, **{field: spec[field] for field in fixed}}
