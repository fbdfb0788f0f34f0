"""What indexing found, from the coordinator's report into the status of each DataSource."""

from __future__ import annotations

from coxswain.wire import SourceReport
from coxswain_operator.reconcile.actions import WriteStatus
from coxswain_operator.reconcile.context import Context, generation
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import Manifest


def statuses(ctx: Context) -> tuple[WriteStatus, ...]:
    """One write for each source whose status does not say yet what the report says."""
    reports = {r.source: r for r in ctx.report.sources} if ctx.report else {}
    writes = []
    for source in ctx.observed.sources:
        report = reports.get(source["metadata"]["name"])
        if report is not None and (status := _status(source, report, ctx.now)) != source.get("status"):
            meta = source["metadata"]
            writes.append(WriteStatus("DataSource", meta["name"], status, str(meta.get("resourceVersion", ""))))
    return tuple(writes)


def _status(source: Manifest, report: SourceReport, now: float) -> Manifest:
    return {
        "observedGeneration": generation(source),
        "conditions": [_ready(source, now)],
        "documents": report.documents,
        "tokens": str(report.tokens),
        "rejected": report.rejected,
        "complete": True,
        "lengths": {"p50": report.p50, "p90": report.p90, "p99": report.p99, "max": report.max},
        "fingerprint": report.fingerprint,
    }


def _ready(source: Manifest, now: float) -> Manifest:
    old = next((c for c in (source.get("status") or {}).get("conditions", ()) if c["type"] == "Ready"), None)
    since = old["lastTransitionTime"] if old and old["status"] == "True" else stamp(now)
    return {
        "type": "Ready", "status": "True", "reason": "Indexed", "message": "",
        "lastTransitionTime": since, "observedGeneration": generation(source),
    }  # fmt: skip
