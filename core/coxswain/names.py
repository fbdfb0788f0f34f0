"""Strings that two parts must spell alike: labels, variables, ports, conditions, reasons."""

from __future__ import annotations

from typing import Literal, get_args

GROUP = "coxswain.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

CONTROLLER = f"{GROUP}/operator"  # of jobs whose spec.managedBy is empty

# Labels on every child. Written by the operator's manifests, read by its selectors and by people.
LABEL_JOB = "coxswain.dev/job"
LABEL_JOB_UID = "coxswain.dev/job-uid"
LABEL_ATTEMPT = "coxswain.dev/attempt"
LABEL_ROLE = "coxswain.dev/role"  # coordinator | loader | trainer
LABEL_INDEX = "coxswain.dev/index"
LABEL_INCARNATION = "coxswain.dev/incarnation"

# On a TrainingJob, put there by `cox run --until-step N`: checkpoint and stop at the first boundary not before it, and stay
# suspended until the annotation names a later step or is taken away.
ANNOTATION_STOP_AT = "coxswain.dev/stop-at-step"

# On pods: the nodes that were quarantined when they were created, with commas between.
ANNOTATION_AVOIDS = "coxswain.dev/avoids"

# On a TrainingJob that has ended: a value that is not status.retried starts it again from its last checkpoint.
ANNOTATION_RETRY = "coxswain.dev/retry"

# Environment of every service's container. Written by the operator's manifests, read by coxswain_link.environment.
ENV_NAME = "COXSWAIN_NAME"  # `trainer-2`, `loader-0`, `coordinator`: stable over incarnations
ENV_INDEX = "COXSWAIN_INDEX"
ENV_INCARNATION = "COXSWAIN_INCARNATION"  # how many pods the member had before this one
ENV_COORDINATOR = "COXSWAIN_COORDINATOR_URL"
ENV_JOB_DIR = "COXSWAIN_JOB_DIR"  # holds job.json (ConfigMap)
ENV_CONFIG = "COXSWAIN_CONFIG"  # name of that ConfigMap, which differs between attempts of other configurations
ENV_TOKEN_DIR = "COXSWAIN_TOKEN_DIR"  # holds token (Secret)
ENV_SECRETS_DIR = "COXSWAIN_SECRETS_DIR"  # one folder per endpoint Secret
ENV_RUN_DIR = "COXSWAIN_RUN_DIR"  # coordinator only: steps.jsonl, events.jsonl, timings.jsonl
ENV_RECORDED_STEP = "COXSWAIN_RECORDED_STEP"  # coordinator only: of status.lastCheckpoint; optional
ENV_TERMINATION_LOG = "COXSWAIN_TERMINATION_LOG"
ENV_STORE_PATIENCE = "COXSWAIN_STORE_PATIENCE_SECONDS"  # for which S3 may be away within one call; optional
ENV_LOG_LEVEL = "COXSWAIN_LOG_LEVEL"  # of a service; optional
ENV_HOST_NETWORK = "COXSWAIN_HOST_NETWORK"  # "true" in a pod with hostNetwork; optional
ENV_POD_NAME = "POD_NAME"
ENV_POD_IP = "POD_IP"
ENV_POD_UID = "POD_UID"
ENV_NODE = "NODE_NAME"  # trainer only: of the Kubernetes node, or of the machine

# Where pods mount the PersistentVolumeClaims of `pvc://` uris, one folder a claim; services see plain file uris.
CLAIMS_ROOT = "/mnt/claims"

# Ports inside a pod. Every pod has its own address, also on one machine.
PORT_COORDINATOR = 7400  # control, /metrics, the page for people
PORT_LOADER = 7410  # Arrow Flight
PORT_LOADER_HTTP = 7411  # /healthz /readyz /metrics
PORT_CONSTRUCTOR_HTTP = 7421
PORT_AGENT_HTTP = 7431

CONDITIONS = (
    "Succeeded", "Validated", "DataReady", "PodsReady", "Progressing", "Degraded", "Suspended", "CheckpointFresh",
)  # fmt: skip

EventReason = Literal[
    "Validated", "IndexingStarted", "GangStarted", "TrainingStarted", "MixChanged", "SourceExhausted", "NodeLost", "PodDisrupted",
    "WorkerRestarted", "CheckpointSaved", "Scaled", "GangReleased", "Suspended", "Resumed", "Completed", "Failed",
    "EditPending", "StrategyChosen", "PlanLate", "PlanFailed", "NodeQuarantined", "NodeReadmitted", "NodeKept",
    "StragglerDetected", "StragglerRecovered", "LayoutChanged", "LayoutMeasured", "FailedDelete", "FailedUpdate",
]  # fmt: skip
EVENT_REASONS: tuple[EventReason, ...] = get_args(EventReason)
"""The operator publishes an event of no other reason."""


def host_port(host: str, port: int) -> str:
    """Of a URL: an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def constructor_socket(pod_uid: str) -> str:
    """Returns the abstract Unix socket of a trainer pod's constructor. It leaves no file behind."""
    return f"\0coxswain-constructor-{pod_uid}"
