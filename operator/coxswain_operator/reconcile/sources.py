"""What indexing found, from the coordinator's report into the status of each DataSource."""

from __future__ import annotations

from typing import NamedTuple

from coxswain.wire import SourceReport
from coxswain_operator.reconcile.actions import WriteStatus
from coxswain_operator.reconcile.context import Context, generation
from coxswain_operator.reconcile.pinned import Start, part
from coxswain_operator.reconcile.times import stamp
from coxswain_operator.views import Manifest

READY = "Ready"  # the only condition of a DataSource that is ours


def statuses(ctx: Context) -> tuple[WriteStatus, ...]:
    """One write for each source whose status does not say yet what the report says.

    Jobs may have indexed a source at different times, and found different contents. The coordinator that was created
    last decides; otherwise they would write in turn for ever.
    """
    if ctx.report is None or ctx.coordinator is None or ctx.start is None:
        return ()
    reports, mine = {r.source: r for r in ctx.report.sources}, _Origin(stamp(ctx.coordinator.created), ctx.name)
    found = ((source, reports.get(source["metadata"]["name"])) for source in ctx.observed.sources)
    writes = (_write(source, report, mine, ctx.start, ctx.now) for source, report in found if report is not None)
    return tuple(write for write in writes if write is not None)


class _Origin(NamedTuple):
    """What an index stems from; the greater one decides."""

    time: str  # when the coordinator was created
    job: str


def _write(source: Manifest, report: SourceReport, mine: _Origin, start: Start, now: float) -> WriteStatus | None:
    """None: there is nothing new to say, or the source was edited since: that waits for the next attempt."""
    meta, old = source["metadata"], source.get("status") or {}
    status = _status(source, report, now)
    known = {name: value for name, value in old.items() if name not in ("indexedAt", "indexedBy", "conditions")}
    # Of others the server keeps theirs.
    known["conditions"] = [c for c in old.get("conditions", ()) if c["type"] == READY]
    if status == known or mine < _Origin(old.get("indexedAt", ""), old.get("indexedBy", "")):
        return None
    if start.specs["DataSource"].get(meta["name"]) != part("DataSource", source):
        return None
    status |= {"indexedAt": mine.time, "indexedBy": mine.job}
    return WriteStatus("DataSource", meta["name"], status, str(meta.get("resourceVersion", "")))


def _status(source: Manifest, report: SourceReport, now: float) -> Manifest:
    """The generation that was indexed is a matter of Ready. An edit waits for the next start of a job that reads the source, if
    there is one: with an observedGeneration of the whole status, tools that wait for objects would take the source for busy.
    """
    return {
        "conditions": [_ready(source, now)],
        "documents": report.documents,
        "tokens": str(report.tokens),
        "rejected": report.rejected,
        "complete": True,
        "lengths": {"p50": report.p50, "p90": report.p90, "p99": report.p99, "max": report.max},
        "fingerprint": report.fingerprint,
    }


def _ready(source: Manifest, now: float) -> Manifest:
    old = next((c for c in (source.get("status") or {}).get("conditions", ()) if c["type"] == READY), None)
    since = old["lastTransitionTime"] if old and old["status"] == "True" else stamp(now)
    return {
        "type": READY, "status": "True", "reason": "Indexed", "message": "",
        "lastTransitionTime": since, "observedGeneration": generation(source),
    }  # fmt: skip
