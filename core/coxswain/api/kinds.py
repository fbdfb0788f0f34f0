"""The table of kinds, for generators, loaders and validators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coxswain.api.common import Model
from coxswain.api.datamix import DataMixSpec
from coxswain.api.datasource import DataSourceSpec, DataSourceStatus
from coxswain.api.effects import Effect
from coxswain.api.nodequarantine import NodeQuarantineSpec
from coxswain.api.parallelism import ParallelismPolicySpec
from coxswain.api.trainingjob import TrainingJobSpec
from coxswain.api.trainingjob_status import TrainingJobStatus


@dataclass(frozen=True, slots=True)
class Column:
    """A printer column. `wide`: only with `-o wide`."""

    name: str
    type: str
    path: str
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """Paths of the scale subresource."""

    spec: str
    status: str
    selector: str


@dataclass(frozen=True, slots=True)
class Kind:
    """One custom resource. `status` None: nothing writes one."""

    name: str
    plural: str
    short: str
    spec: type[Model]
    status: type[Model] | None
    columns: tuple[Column, ...]
    scale: Scale | None = None
    selectable: tuple[str, ...] = ()
    effect: Effect | None = None  # of edits of all fields that do not say it
    namespaced: bool = True
    switch: str = ""  # the chart's value without which it is not installed; empty: it always is
    example: str = "examples/kubernetes.yaml"  # has an object of the kind


def _reason(condition: str) -> str:
    return f'.status.conditions[?(@.type=="{condition}")].reason'


_READY = Column("READY", "string", '.status.conditions[?(@.type=="Ready")].status')
_WHY = Column("REASON", "string", _reason("Ready"))
_AGE = Column("AGE", "date", ".metadata.creationTimestamp")

KINDS: Final[tuple[Kind, ...]] = (
    Kind(
        "DataSource", "datasources", "dsrc", DataSourceSpec, DataSourceStatus,
        (
            Column("FORMAT", "string", ".spec.format"), _READY, _WHY,
            Column("DOCUMENTS", "integer", ".status.documents"), Column("TOKENS", "string", ".status.tokens"), _AGE,
            Column("URI", "string", ".spec.uri", wide=True), Column("MAX", "integer", ".status.lengths.max", wide=True),
        ),
    ),
    Kind(
        "DataMix", "datamixes", "dmix", DataMixSpec, None,
        (
            Column("SEED", "integer", ".spec.seed"), Column("LONG", "string", ".spec.longSequences"), _AGE,
        ),
    ),
    Kind(
        "ParallelismPolicy", "parallelismpolicies", "ppol", ParallelismPolicySpec, None,
        (
            Column("MODE", "string", ".spec.mode"), Column("TENSOR", "integer", ".spec.tensor"),
            Column("PIPELINE", "integer", ".spec.pipeline"), Column("TOKENS", "integer", ".spec.hybridData.tokensPerReplica"),
            Column("BALANCE", "string", ".spec.hybridData.balance"), _AGE,
        ),
        effect=Effect.NEXT_ATTEMPT,
    ),
    Kind(
        "TrainingJob", "trainingjobs", "tj", TrainingJobSpec, TrainingJobStatus,
        (
            Column("STATE", "string", _reason("Succeeded")), Column("READY", "string", ".status.ready"),
            Column("STEP", "integer", ".status.progress.step"), Column("PROGRESS", "string", ".status.progress.percent"),
            Column("TOK/S", "string", ".status.progress.tokensPerSecond"),
            Column("RESTARTS", "integer", ".status.restarts.counted"),
            Column("SLOW", "string", ".status.stragglers[0].trainer"), _AGE,
            Column("LOSS", "string", ".status.progress.loss", wide=True),
            Column("IDLE", "string", ".status.progress.idlePercent", wide=True),
            Column("ETA", "integer", ".status.progress.etaSeconds", wide=True),
            Column("LAYOUT", "string", ".status.layout.summary", wide=True),
            Column("MIX", "string", ".spec.mixRef.name", wide=True),
            Column("CHECKPOINT", "integer", ".status.lastCheckpoint.step", wide=True),
        ),
        Scale(".spec.trainers.count", ".status.replicas", ".status.selector"),
        (".spec.mixRef.name", ".spec.scheduling.queueing.queueName"),
    ),
    Kind(
        "NodeQuarantine", "nodequarantines", "nq", NodeQuarantineSpec, None,
        (
            Column("NODE", "string", ".spec.node"), Column("REASON", "string", ".spec.reason"),
            Column("UNTIL", "string", ".spec.until"), _AGE,
            Column("JOB", "string", r".metadata.labels.coxswain\.dev/job", wide=True),
            Column("EVIDENCE", "string", ".spec.evidence", wide=True),
            Column("NODE-UID", "string", ".spec.nodeUid", wide=True),
        ),
        selectable=(".spec.node",), namespaced=False, switch="quarantine.enabled", example="examples/quarantine.yaml",
    ),
)  # fmt: skip

ALWAYS: Final = tuple(kind for kind in KINDS if not kind.switch)
"""Those that every installation has."""

BY_NAME: Final[dict[str, Kind]] = {kind.name: kind for kind in KINDS}
