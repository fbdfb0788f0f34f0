"""The four services as containers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coxswain import names
from coxswain.config import JobConfig
from coxswain_operator.views import Manifest

JOB_DIR = "/etc/coxswain/job"
TOKEN_DIR = "/etc/coxswain/token"
SECRETS_DIR = "/etc/coxswain/secrets"
RUN_DIR = "/var/run/coxswain"
SCRATCH_DIR = "/var/lib/coxswain"  # besides its volumes the only folder that a service may write to
TERMINATION_LOG = "/dev/termination-log"


@dataclass(frozen=True, slots=True)
class Service:
    """The command of one service. `http`: the port of /healthz, /readyz and /metrics."""

    name: str
    module: str
    http: int
    memory: str = ""  # requested with a tenth of a core, so that the pod is not BestEffort


COORDINATOR = Service("coordinator", "coxswain_coordinator", names.PORT_COORDINATOR, "128Mi")
LOADER = Service("loader", "coxswain_data.loader", names.PORT_LOADER_HTTP, "256Mi")
CONSTRUCTOR = Service("constructor", "coxswain_data.constructor", names.PORT_CONSTRUCTOR_HTTP, "256Mi")
TRAINER = Service("trainer", "coxswain_train.agent", names.PORT_AGENT_HTTP)

GPU = "nvidia.com/gpu"
# A service that has answered nothing for 70 s hangs, as does a coordinator whose driver does: its container is ended, and what
# follows is what follows a crash. Peers notice that it hangs, but they cannot end it. A start may take long where an image is
# read as it is used. The grace is the sidecar's: with its only main container a kubelet ends a pod, after the pod's own.
LIVENESS = {
    "initialDelaySeconds": 300,
    "periodSeconds": 10,
    "timeoutSeconds": 10,
    "failureThreshold": 6,
    "terminationGracePeriodSeconds": 10,
}


def container(
    service: Service, job: Manifest, config: JobConfig, image: str, pull_policy: str, mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    """The service's container. Restricted: no root, no privilege, only volumes are writable."""
    secrets = any(m["mountPath"].startswith(SECRETS_DIR) for m in mounts)
    return {
        "name": service.name,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": ["python", "-m", "coxswain_link.start", service.module],
        "env": environment(service, job, secrets),
        "resources": resources(service, config),
        "ports": ports(service),
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": service.http},
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        },
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": service.http}, **LIVENESS},
        "terminationMessagePath": TERMINATION_LOG,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def resources(service: Service, config: JobConfig) -> dict[str, Any]:
    """Defaults, replaced by a template's `resources`: a GPU a device, little for data services."""
    if service.memory:
        return {"requests": {"cpu": "100m", "memory": service.memory}}
    return {} if config.parallelism.hardware == "cpu" else {"limits": {GPU: str(config.devices_per_trainer)}}


def ports(service: Service) -> list[dict[str, Any]]:
    """Ports, each named like its service."""
    flight = [{"name": "flight", "containerPort": names.PORT_LOADER}] if service is LOADER else []
    return [{"name": service.name, "containerPort": service.http}, *flight]


def environment(service: Service, job: Manifest, secrets: bool) -> list[dict[str, Any]]:
    """The environment without ENV_NAME, ENV_INDEX, ENV_INCARNATION and ENV_CONFIG, which each pod adds."""
    name = job["metadata"]["name"]
    plain = {
        names.ENV_COORDINATOR: f"http://{name}-coordinator.{name}:{names.PORT_COORDINATOR}",
        names.ENV_JOB_DIR: JOB_DIR,
        names.ENV_TOKEN_DIR: TOKEN_DIR,
        names.ENV_TERMINATION_LOG: TERMINATION_LOG,
        "TMPDIR": SCRATCH_DIR,
    }
    plain |= {names.ENV_SECRETS_DIR: SECRETS_DIR} if secrets else {}
    plain |= {names.ENV_RUN_DIR: RUN_DIR, **_recorded_step(job)} if service is COORDINATOR else {}
    fields = {
        names.ENV_POD_NAME: "metadata.name", names.ENV_POD_IP: "status.podIP", names.ENV_POD_UID: "metadata.uid",
    }  # fmt: skip
    fields |= {names.ENV_NODE: "spec.nodeName"} if service is TRAINER else {}
    return [
        *({"name": k, "value": v} for k, v in plain.items()),
        *({"name": k, "valueFrom": {"fieldRef": {"fieldPath": v}}} for k, v in fields.items()),
    ]


def _recorded_step(job: Manifest) -> dict[str, str]:
    """The step below which the job never resumes."""
    recorded = (job.get("status") or {}).get("lastCheckpoint")
    return {names.ENV_RECORDED_STEP: str(recorded["step"])} if recorded else {}


def endpoint_secrets(config: JobConfig) -> tuple[str, ...]:
    """Names of the Secrets that the job's stores need."""
    endpoints = (*(s.endpoint for s in config.mix.sources), config.checkpoint.endpoint)
    return tuple(sorted({e.secret for e in endpoints if e.secret}))
