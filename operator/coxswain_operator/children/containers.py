"""The four services as containers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coxswain import names
from coxswain.config import JobConfig
from coxswain_operator.cluster import Manifest

JOB_DIR = "/etc/coxswain/job"
TOKEN_DIR = "/etc/coxswain/token"
SECRETS_DIR = "/etc/coxswain/secrets"
RUN_DIR = "/var/run/coxswain"
SCRATCH_DIR = "/var/lib/coxswain"  # the only other place that a service may write to
TERMINATION_LOG = "/dev/termination-log"


@dataclass(frozen=True, slots=True)
class Service:
    """How one service is started. `http`: the port of /healthz, /readyz and /metrics."""

    name: str
    module: str
    http: int


COORDINATOR = Service("coordinator", "coxswain_coordinator", names.PORT_COORDINATOR)
LOADER = Service("loader", "coxswain_data.loader", names.PORT_LOADER_HTTP)
CONSTRUCTOR = Service("constructor", "coxswain_data.constructor", names.PORT_CONSTRUCTOR_HTTP)
TRAINER = Service("trainer", "coxswain_train.agent", names.PORT_AGENT_HTTP)


def container(
    service: Service, job: Manifest, member: str, index: int, image: str, pull_policy: str, mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    """Restricted: no root, no privilege, nothing writable but its volumes."""
    return {
        "name": service.name,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": ["python", "-m", service.module],
        "env": environment(
            service, job, member, index, bool([m for m in mounts if m["mountPath"].startswith(SECRETS_DIR)])
        ),
        "ports": [{"name": _port_name(service), "containerPort": service.http}],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": service.http},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        },
        "terminationMessagePath": TERMINATION_LOG,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def environment(service: Service, job: Manifest, member: str, index: int, secrets: bool) -> list[dict[str, Any]]:
    name = job["metadata"]["name"]
    plain = {
        names.ENV_NAME: member,
        names.ENV_INDEX: str(index),
        names.ENV_COORDINATOR: f"http://{name}-coordinator.{name}:{names.PORT_COORDINATOR}",
        names.ENV_JOB_DIR: JOB_DIR,
        names.ENV_TOKEN_DIR: TOKEN_DIR,
        names.ENV_TERMINATION_LOG: TERMINATION_LOG,
        "TMPDIR": SCRATCH_DIR,
    }
    plain |= {names.ENV_SECRETS_DIR: SECRETS_DIR} if secrets else {}
    plain |= {names.ENV_RUN_DIR: RUN_DIR} if service is COORDINATOR else {}
    fields = {
        names.ENV_POD_NAME: "metadata.name", names.ENV_POD_IP: "status.podIP", names.ENV_POD_UID: "metadata.uid",
    }  # fmt: skip
    return [
        *({"name": k, "value": v} for k, v in plain.items()),
        *({"name": k, "valueFrom": {"fieldRef": {"fieldPath": v}}} for k, v in fields.items()),
    ]


def endpoint_secrets(config: JobConfig) -> tuple[str, ...]:
    """Names of the Secrets that the job's stores need."""
    endpoints = (*(s.endpoint for s in config.mix.sources), config.checkpoint.endpoint)
    return tuple(sorted({e.secret for e in endpoints if e.secret}))


def _port_name(service: Service) -> str:
    return f"{service.name[:10]}-http"
