"""Samples of all that is stored or sent, by the name that it has outside the code: a path, a record, a file.

`python -m tests.unit.golden_samples` writes `tests/unit/golden/messages.txt` from the code of today.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect as kinds

from coxswain import block, boxes, config, layout, live, planlog, wire
from coxswain.membership import values as membership
from coxswain.plan import values as plan
from coxswain_cli.reporting import model
from coxswain_coordinator import steps
from coxswain_coordinator.checkpoint import claim, validation
from coxswain_link import flight, handover
from coxswain_operator.reconcile import status

MESSAGES = Path(__file__).parent / "golden" / "messages.txt"

NAMES: dict[str, type[msgspec.Struct]] = {
    "POST /v1/register": wire.Register,
    "reply to POST /v1/register": wire.Registered,
    "reply to a member's report": wire.Ack,
    "POST /v1/beats": wire.Heartbeat,
    "GET /v1/world": wire.World,
    "410 after the end": wire.Finished,
    "refusal": wire.Fault,
    "POST and GET /v1/rendezvous": wire.Rendezvous,
    "GET /v1/loaders": wire.LoaderAddresses,
    "one of GET /v1/loaders": wire.LoaderAddress,
    "POST /v1/exits": wire.WorkerExit,
    "POST /v1/probes": wire.StandbyProbes,
    "reply to POST /v1/probes": wire.ProbesWanted,
    "GET /v1/shares": wire.Shares,
    "POST /v1/indexed": wire.Indexed,
    "GET /v1/blocks": wire.SourceBlocks,
    "plan of a step": wire.StepPlan,
    "GET /v1/plans": wire.StepPlans,
    "GET /v1/steps": wire.StepDirective,
    "POST /v1/served": wire.DeliveredDigests,
    "timing of a task": wire.TaskTiming,
    "POST /v1/reports": wire.StepReport,
    "totals of a step": wire.Totals,
    "shard of a checkpoint": wire.Shard,
    "boxes of a shard": wire.ShardContents,
    "where the boxes of a shard are": wire.Listing,
    "what boxes of a shard lie in": wire.Hull,
    "POST /v1/saved": wire.ShardsSaved,
    "manifests/step-N.json": wire.CheckpointManifest,
    "source of a report": wire.SourceReport,
    "GET /v1/report": wire.JobReport,
    "trainer of a report": wire.TrainerReport,
    "event of a report": wire.JobEvent,
    "straggler of a report": wire.StragglerReport,
    "request of a report for another node": wire.NodeRequest,
    "strategy of a report": wire.StrategyReport,
    "layout of a reported strategy": wire.PredictedLayout,
    "POST /v1/stop": wire.StopRequest,
    "POST /v1/size": wire.Size,
    "reply to POST /v1/size": wire.SizeReply,
    "what a worker holds": live.Held,
    "holder of a shard": live.Holder,
    "living state of a world": live.LiveSource,
    "line of steps.jsonl": wire.StepLine,
    "share of a loader": planlog.LoaderShare,
    "log/generations": planlog.Generation,
    "log/membership": planlog.MembershipSegment,
    "log/mix": membership.MixRecord,
    "log/strategies": planlog.StrategyRecord,
    "log/placements": planlog.PlacementSegment,
    "run.json": validation.RunRecord,
    "live/UID.json": claim.LiveRun,
    "line of timings.jsonl": steps.TimingLine,
    "planned task of timings.jsonl": steps.PlannedTask,
    "rank of timings.jsonl": steps.RankTiming,
    "device": layout.Device,
    "stage": layout.Stage,
    "replica": layout.Replica,
    "layout": layout.Layout,
    "seat": layout.Seat,
    "box": boxes.Box,
    "block": block.BlockEntry,
    "sequence": membership.Sequence,
    "cursor of a source": membership.SourceCursor,
    "cursor": membership.Cursor,
    "membership of a step": membership.Membership,
    "slice": plan.Slice,
    "task": plan.Task,
    "operation": plan.Operation,
    "operations of a stage": plan.StageOperations,
    "placement of a step": plan.Placement,
    "job.json": config.JobConfig,
    "job.json endpoint": config.EndpointConfig,
    "job.json tokenizer": config.TokenizerConfig,
    "job.json source": config.SourceConfig,
    "job.json phase": config.PhaseConfig,
    "job.json mix": config.MixConfig,
    "job.json model": config.ModelConfig,
    "job.json rope scaling": config.RopeScaling,
    "job.json custom model": config.CustomModel,
    "job.json parallelism": config.ParallelConfig,
    "job.json replica of a layout": config.ReplicaShape,
    "job.json stage of a layout": config.StageShape,
    "job.json batch": config.BatchConfig,
    "job.json optimizer": config.OptimizerConfig,
    "StepPlan evaluation": wire.Evaluation,
    "job.json parameter group": config.ParameterGroupConfig,
    "job.json evaluation": config.EvaluationConfig,
    "job.json tensorboard": config.TensorBoardConfig,
    "job.json wandb": config.WandbConfig,
    "job.json tracking": config.TrackingConfig,
    "job.json checkpoint": config.CheckpointConfig,
    "job.json stragglers": config.StragglerConfig,
    "job.json recovery": config.RecoveryConfig,
    "Flight ticket": flight.Request,
    "slice of a Flight ticket": flight.SliceRequest,
    "request for a hand-over": handover.HandoverRequest,
    "reply of a hand-over": handover.HandoverReply,
    "status of a TrainingJob": status.JobStatus,
    "condition of a status": status.Condition,
    "incarnation of a status": status.Incarnation,
    "restarts of a status": status.Restarts,
    "trainers of a status": status.Trainers,
    "gang of a status": status.GangStatus,
    "progress of a status": status.Progress,
    "lastCheckpoint of a status": status.LastCheckpoint,
    "layout of a status": status.LayoutStatus,
    "strategy of a status": status.StrategyStatus,
    "layout of a strategy": status.PredictedLayout,
    "straggler of a status": status.Straggler,
    "keptNode of a status": status.KeptNode,
    "attempt of a status": status.Attempt,
    "pin of a status": status.Pinned,
    "images of a pin": status.Images,
    "gang scheduling of a pin": status.GangScheduling,
    "steps.jsonl as a report reads it": model.RecordedStep,
    "timings.jsonl as a report reads it": model.StepTiming,
    "planned task as a report reads it": model.PlannedTask,
    "rank as a report reads it": model.RankTiming,
    "operation as a report reads it": model.MeasuredPass,
    "timings.jsonl as a glance reads it": model.Glance,
    "planned task as a glance reads it": model.GlanceTask,
}

NOT_ENCODED = {boxes.Piece}
"""Structs of the same modules that are neither stored nor sent."""


def full(type_: type[msgspec.Struct]) -> Any:
    """Every field has a value of its own that is not its default; a collection holds two values."""
    return _made(kinds.type_info(type_), count(101), True)


def least(type_: type[msgspec.Struct]) -> Any:
    """Optional fields have their defaults; of the others, what may be empty or None is so."""
    return _made(kinds.type_info(type_), count(101), False)


def _made(kind: kinds.Type, numbers: Iterator[int], is_full: bool) -> Any:
    match kind:
        case kinds.StructType(cls=cls, fields=fields):
            wanted = [f for f in fields if is_full or f.required]
            return cls(**{f.name: _other(f, numbers, is_full) for f in wanted})
        case kinds.VarTupleType(item_type=item):
            return tuple(_made(item, numbers, True) for _ in range(2 * is_full))
        case kinds.TupleType(item_types=items):
            return tuple(_made(item, numbers, is_full) for item in items)
        case kinds.DictType(key_type=key, value_type=value):
            return {_made(key, numbers, True): _made(value, numbers, True) for _ in range(2 * is_full)}
        case kinds.UnionType(types=types):
            some = next(t for t in types if not isinstance(t, kinds.NoneType))
            return _made(some, numbers, True) if is_full else None
    return _plain(kind, numbers)


def _other(field: kinds.Field, numbers: Iterator[int], is_full: bool) -> Any:
    """A value that is not the field's default."""
    match field.type:
        case kinds.BoolType():
            return field.default is not True
        case kinds.LiteralType(values=values):
            return next(v for v in reversed(values) if v != field.default)
    return _made(field.type, numbers, is_full)


def _plain(kind: kinds.Type, numbers: Iterator[int]) -> Any:
    n = next(numbers)
    match kind:
        case kinds.IntType():
            return n
        case kinds.FloatType():
            return n + 0.5
        case kinds.StrType() | kinds.AnyType():
            return f"text {n}"
        case kinds.LiteralType(values=values):
            return values[0]
    raise TypeError(f"no sample of {kind}")


def entries() -> dict[str, bytes]:
    """Golden lines by their names."""
    both = [(f"{name}, {how.__name__}", how(type_)) for name, type_ in NAMES.items() for how in (full, least)]
    return {name: msgspec.json.encode(value) for name, value in both}


def recorded() -> dict[str, bytes]:
    """The golden lines: a name in one line, its bytes in the next."""
    lines = MESSAGES.read_bytes().split(b"\n")
    return {name.decode(): content for name, content in zip(lines[::2], lines[1::2], strict=False)}


def main() -> None:
    MESSAGES.write_bytes(b"".join(name.encode() + b"\n" + content + b"\n" for name, content in entries().items()))
    sys.stdout.write(f"{MESSAGES}: {len(entries())} entries\n")


if __name__ == "__main__":
    main()
