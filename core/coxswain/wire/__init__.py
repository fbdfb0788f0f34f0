"""Messages between the services of a job: JSON by msgspec over HTTP, under `/v1/`. One struct per body.

Every request carries `Authorization: Bearer <job token>` and, once a world exists, `X-Coxswain-Generation`. An older
generation is answered 409 (`Stale`), a wrong token 401; refusals are 422 with a `Fault` body.
"""

from __future__ import annotations

from coxswain.wire.blocks import BLOCKS_IN_MESSAGE, Indexed, Shares, SourceBlocks
from coxswain.wire.checkpoints import CheckpointManifest, Hull, Listing, Shard, ShardContents, ShardsSaved
from coxswain.wire.joining import (
    GENERATION_HEADER,
    TOKEN_HEADER,
    Ack,
    Fault,
    Finished,
    Heartbeat,
    LoaderAddress,
    LoaderAddresses,
    Register,
    Registered,
    Rendezvous,
    Role,
    WorkerExit,
    World,
)
from coxswain.wire.reports import (
    JobEvent,
    JobReport,
    NodeRequest,
    PredictedLayout,
    Size,
    SizeReply,
    SourceReport,
    StepLine,
    StopRequest,
    StragglerReport,
    StrategyReport,
    TrainerReport,
)
from coxswain.wire.steps import (
    DeliveredDigests,
    End,
    Evaluation,
    StepDirective,
    StepPlan,
    StepPlans,
    StepReport,
    TaskTiming,
    Totals,
)

__all__ = [
    "BLOCKS_IN_MESSAGE",
    "GENERATION_HEADER",
    "TOKEN_HEADER",
    "Ack",
    "CheckpointManifest",
    "DeliveredDigests",
    "End",
    "Evaluation",
    "Fault",
    "Finished",
    "Heartbeat",
    "Hull",
    "Indexed",
    "JobEvent",
    "JobReport",
    "Listing",
    "LoaderAddress",
    "LoaderAddresses",
    "NodeRequest",
    "PredictedLayout",
    "Register",
    "Registered",
    "Rendezvous",
    "Role",
    "Shard",
    "ShardContents",
    "ShardsSaved",
    "Shares",
    "Size",
    "SizeReply",
    "SourceBlocks",
    "SourceReport",
    "StepDirective",
    "StepLine",
    "StepPlan",
    "StepPlans",
    "StepReport",
    "StopRequest",
    "StragglerReport",
    "StrategyReport",
    "TaskTiming",
    "Totals",
    "TrainerReport",
    "WorkerExit",
    "World",
]
