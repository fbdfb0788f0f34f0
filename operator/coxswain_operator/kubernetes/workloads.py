"""Kueue's Workloads: of a job's groups what was admitted, in whatever version the server has."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from coxswain.names import LABEL_JOB_UID
from coxswain_operator.children.common import CONTENT
from coxswain_operator.children.workload import in_version
from coxswain_operator.cluster import Denied
from coxswain_operator.kubernetes.cache import Name
from coxswain_operator.kubernetes.connection import Connection, NotFound
from coxswain_operator.kubernetes.decoding import manifest_of
from coxswain_operator.kubernetes.remembered import Remembered
from coxswain_operator.kubernetes.resources import FIELD_MANAGER, PRIORITIES, WORKLOAD_PRIORITIES, WORKLOADS, Resource
from coxswain_operator.reconcile.partial import LOOK_SECONDS
from coxswain_operator.views import AdmissionView, Manifest


class Workloads:
    """Reads, makes and deletes Workloads. What was read is remembered for LOOK_SECONDS, unless it is written to."""

    def __init__(self, connection: Connection, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = connection
        # By namespace and the job's uid.
        self._known = Remembered[Name, tuple[AdmissionView, ...] | None](LOOK_SECONDS, clock)

    async def admissions(self, namespace: str, job_uid: str) -> Sequence[AdmissionView] | None:
        """Those that the operator has made for the job; None: the server has no Kueue."""
        if (namespace, job_uid) in self._known:
            return self._known[namespace, job_uid]
        found = self._known[namespace, job_uid] = await self._read(namespace, job_uid)
        return found

    async def create(self, manifest: Manifest) -> Manifest:
        """Raises AlreadyExists, Refused, Denied, Retryable."""
        namespace, priority = manifest["metadata"]["namespace"], await self._priority(manifest["spec"])
        self._known.clear()
        for workloads in WORKLOADS:
            with suppress(NotFound):
                body = in_version(manifest, workloads.api_version.rpartition("/")[2], priority)
                path = workloads.path(namespace)
                query: dict[str, Any] = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
                return manifest_of(await self._connection.send("POST", path, body, **query))
        raise Denied(
            "NotFound", f"the API server serves no {WORKLOADS[0].plural} of Kueue, or has no namespace {namespace}"
        )

    async def delete(self, namespace: str, name: str) -> None:
        self._known.clear()
        for workloads in WORKLOADS:
            with suppress(NotFound):
                await self._connection.send("DELETE", workloads.path(namespace, name))
                return

    async def _read(self, namespace: str, job_uid: str) -> tuple[AdmissionView, ...] | None:
        """Without the right to look there is none: the attempt to make one then says what is lacking."""
        for workloads in WORKLOADS:
            with suppress(NotFound):
                path = workloads.path(namespace)
                try:
                    found = await self._connection.call("GET", path, labelSelector=f"{LABEL_JOB_UID}={job_uid}")
                except Denied:
                    return ()
                return tuple(map(admission_view, found["items"]))
        return None

    async def _priority(self, spec: Manifest) -> int:
        """The value of the class that the Workload names: Kueue wants both."""
        ref = spec.get("priorityClassRef")
        if ref is None:
            return 0
        kinds: tuple[Resource, ...] = (PRIORITIES,) if ref["kind"] == PRIORITIES.kind else WORKLOAD_PRIORITIES
        for kind in kinds:
            with suppress(NotFound):
                return int((await self._connection.call("GET", kind.path(name=ref["name"])))["value"])
        raise Denied("NotFound", f"{ref['kind']} {ref['name']} does not exist")


def admission_view(workload: Manifest) -> AdmissionView:
    """Its admission holds from Admitted until Evicted."""
    meta, status = workload["metadata"], workload.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    admitted = _is(conditions, "Admitted", "True") and not _is(conditions, "Evicted", "True")
    counts = {s["name"]: s.get("count") for s in (status.get("admission") or {}).get("podSetAssignments") or ()}
    trainers = counts.get("trainer") if admitted else None
    waits = conditions.get("Evicted") if _is(conditions, "Evicted", "True") else conditions.get("QuotaReserved")
    content = (meta.get("annotations") or {}).get(CONTENT, "")
    active = (workload.get("spec") or {}).get("active") is not False
    return AdmissionView(meta["name"], content, trainers, str((waits or {}).get("message", "")), active)


def _is(conditions: dict[str, Manifest], type_: str, status: str) -> bool:
    return type_ in conditions and conditions[type_]["status"] == status
