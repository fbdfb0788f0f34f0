"""For every rule, at every place where it holds: an accepted object, a refused one, the message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.api_samples import LAYOUT, PHASE, REMOVED, SHAPE

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """Changes of the kind's sample. With `before`, the two are updates of that."""

    rule: str
    kind: str
    accept: Changes
    refuse: Changes
    path: str
    message: str
    before: Changes | None = None


def _mix(
    rule: str, accept: Changes, refuse: Changes, path: str, message: str, before: Changes | None = None
) -> list[Case]:
    """The same case for a DataMix and for a mix written in line."""
    whole = {"spec.sources": _SOURCES, **(before or {})}
    cases = [
        Case(
            rule,
            "DataMix",
            {**whole, **accept},
            {**whole, **refuse},
            path,
            message,
            whole if before is not None else None,
        )
    ]
    inline = [{_inline(key): value for key, value in part.items()} for part in (whole, accept, refuse)]
    base = {"spec.mixRef": REMOVED, "spec.mix.seed": 7, **inline[0]}
    cases.append(
        Case(
            rule, "TrainingJob", {**base, **inline[1]}, {**base, **inline[2]}, _inline(path), message,
            base if before is not None else None,
        )
    )  # fmt: skip
    return cases


def _inline(path: str) -> str:
    return path.replace("spec", "spec.mix", 1)


def _phases(*phases: dict[str, Any]) -> dict[str, Any]:
    return {"spec.phases": [{**PHASE, **phase} for phase in phases]}


_SOURCES = [
    {"name": "code", "sourceRef": {"name": "code"}, "weight": 700},
    {"name": "docs", "sourceRef": {"name": "docs"}, "weight": 300},
]
_WEIGHTLESS = [{**source, "weight": 0} for source in _SOURCES]
_REWEIGHED = [{**source, "weight": 1, "maxPasses": 2} for source in _SOURCES]
_FILE = {"file": {"uri": "s3://corpus/tokenizer.json"}}
_BY_CODE = {"name": "bug", "onExitCodes": {"operator": "In", "values": [2]}, "action": "Fail"}
_BY_CONDITION = {"name": "gone", "onPodConditions": [{"type": "DisruptionTarget"}], "action": "RestartTrainer"}
_BY_REASON = {"name": "memory", "onReasons": ["OOMKilled"], "action": "RestartJob"}
_OTHER_STREAM = "create another DataMix: the change gives another stream"


def _shape(**changes: Any) -> dict[str, Any]:
    return {"spec.model": {"config": {**SHAPE, **changes}}}


def _custom(**changes: Any) -> dict[str, Any]:
    shape = {"class": "gpt:GPT", "layers": 2, "hidden": 128, "heads": 4, "feedForward": 512}
    return {"spec.model": {"custom": {**shape, **changes}}}


def _job(rule: str, path: str, good: Any, bad: Any, message: str, at: str = "", **more: Any) -> Case:
    """A job whose `path` is `good`, and one where it is `bad`."""
    return Case(rule, "TrainingJob", {path: good}, {path: bad}, at or path, message, **more)


def _immutable(kind: str, name: str, good: Any, bad: Any, way_out: str) -> Case:
    path = f"spec.{name}"
    return Case(
        f"{kind}-{name}-immutable".lower(),
        kind,
        {path: good},
        {path: bad},
        path,
        f"{name} is immutable; {way_out}",
        {path: good},
    )


def _suspended(name: str, old: Any, new: Any) -> Case:
    """The change is accepted in a suspended job, and refused in a running one."""
    path = f"spec.{name}"
    words = f"{name} may change only while the job is suspended; set suspend: true first, and change it then"
    return Case(
        f"trainingjob-{name.replace('.', '-')}-suspended".lower(),
        "TrainingJob",
        {path: new},
        {path: new},
        path,
        words,
        {path: old},
    )


def _policy(rule: str, good: Any, bad: Any, message: str, at: str) -> list[Case]:
    """The same case for a ParallelismPolicy and for a policy written in line."""
    held = {"hybridData": {"tokensPerReplica": 2048}}
    kinds = (("ParallelismPolicy", "spec"), ("TrainingJob", "spec.parallelism"))
    return [
        Case(rule, kind, _under(place, held, good), _under(place, held, bad), place + at, message)
        for kind, place in kinds
    ]


def _under(place: str, *parts: dict[str, Any]) -> dict[str, Any]:
    """Changes of single fields below a place."""
    fields = {f"{name}.{inner}": v for part in parts for name, value in part.items() for inner, v in _inner(value)}
    return {f"{place}.{name}".removesuffix("."): value for name, value in fields.items()}


def _inner(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else [("", value)]


_CORPUS = "create another DataSource: the change gives another corpus"
_MODEL = "create another job: the change gives another model"
_STREAM = "create another job: the change gives another stream"
_BATCH = {"tokensPerStep": 512, "maxSequenceTokens": 64}
_OPTIMIZER = {"learningRate": "3e-4"}

_URIS = {
    "DataSource": ("spec.uri", "spec.tokenizer.file.uri"), "ParallelismPolicy": ("spec.profile.uri",),
    "TrainingJob": ("spec.checkpoint.uri", "spec.model.initFrom.uri", "spec.parallelism.profile.uri"),
}  # fmt: skip


def _uri_cases() -> list[Case]:
    """A key of S3 may have a literal %00; a path may not, at any place of a uri. No request can name some keys."""
    nul = "%00 stands for a NUL, which no path holds; remove it, or write a % as %25"
    part = "no part of a path in a bucket may be empty, '.' or '..', or have a control character; write the path as S3 lists it"
    fields = [(kind, field) for kind, of_kind in _URIS.items() for field in of_kind]
    alone = {"spec.tokenizer.file.uri": {"spec.tokenizer.bytes": REMOVED}}
    return [
        Case(
            rule, kind, {**alone.get(field, {}), field: right}, {**alone.get(field, {}), field: wrong}, field, message,
        )
        for kind, field in fields
        for rule, right, wrong, message in (
            ("uri-encoded-nul", "s3://b/a%00", "file:///a%00", nul), ("uri-path-in-bucket", "s3://b//..a/", "s3://b/a//b", part),
        )
    ]  # fmt: skip


CASES: list[Case] = [
    *_uri_cases(),
    # DataSource
    Case(
        "tokenizer-one-of", "DataSource", {"spec.tokenizer": _FILE}, {"spec.tokenizer": {}}, "spec.tokenizer",
        "a tokenizer is exactly one of bytes and file; give one of the two",
    ),
    Case(
        "source-endpoint", "DataSource", {"spec.endpoint": {"url": "http://s3:7070"}},
        {"spec.endpoint": {"url": "http://s3:7070"}, "spec.uri": "file:///corpus"}, "spec.endpoint",
        "an endpoint belongs to an s3:// uri, not to file:///corpus; remove endpoint, or use an s3:// uri",
    ),
    _immutable("DataSource", "uri", "s3://corpus/code/", "s3://corpus/docs/", _CORPUS),
    _immutable("DataSource", "format", "Parquet", "Jsonl", _CORPUS),
    _immutable("DataSource", "include", "**/*", "*.parquet", _CORPUS),
    _immutable("DataSource", "textField", "text", "content", _CORPUS),
    _immutable("DataSource", "tokenizer", {"bytes": {}}, _FILE, _CORPUS),
    _immutable("NodeQuarantine", "node", "node-a", "node-b", "delete it, and create one of the other node"),
    # DataMix, alone and in line
    *_mix(
        "mix-weight", {}, {"spec.sources": _WEIGHTLESS}, "spec.sources",
        "at least one source must have a weight above 0; raise a weight",
    ),
    *_mix(
        "mix-phase-names", _phases({}), _phases({"weights": [{"name": "books", "weight": 1}]}), "spec.phases",
        "phases may give weights only to sources of this mix; use the names in sources",
    ),
    *_mix(
        "mix-phase-unit", _phases({}, {"fromStep": 20}),
        {"spec.phases": [PHASE, {"fromTokens": 5, "weights": PHASE["weights"]}]}, "spec.phases",
        "phases must all start by fromStep or all by fromTokens; use one of the two throughout",
    ),
    *_mix(
        "mix-phase-distinct", _phases({}, {"fromStep": 20}), _phases({}, {}), "spec.phases",
        "no two phases may start at the same step or token count; merge them, or move one",
    ),
    *_mix(
        "mix-phase-start", {"spec.phases": [{"fromTokens": 5, "weights": PHASE["weights"]}]}, _phases({"fromTokens": 5}),
        "spec.phases[0]", "a phase has exactly one of fromStep and fromTokens; give one of the two",
    ),
    *_mix(
        "mix-phase-weight", _phases({}), _phases({"weights": [{"name": "code", "weight": 0}]}), "spec.phases[0].weights",
        "at least one weight of a phase must be above 0; raise a weight",
    ),
    *_mix("mix-seed-immutable", {}, {"spec.seed": 8}, "spec.seed", f"seed is immutable; {_OTHER_STREAM}", {}),
    *_mix(
        "mix-longsequences-immutable", {}, {"spec.longSequences": "Drop"}, "spec.longSequences",
        f"longSequences is immutable; {_OTHER_STREAM}", {},
    ),
    *_mix(
        "mix-sources-immutable", {"spec.sources": _REWEIGHED}, {"spec.sources": _SOURCES[:1]}, "spec.sources",
        f"names and sourceRefs of the sources are immutable; only weight and maxPasses may change; {_OTHER_STREAM}", {},
    ),
    # TrainingJob
    _job(
        "job-name-length", "metadata.name", "a" * 40, "a" * 41,
        "the name has 41 characters, at most 40 are allowed; shorten it: pods and services are named after it",
    ),
    _job(
        "job-name-label", "metadata.name", "a-1", "1.a",
        "the name 1.a must be lower-case letters, digits and -, starting with a letter; "
        "rename it: pods and services are named after it",
    ),
    _job(
        "job-mix-one-of", "spec.mixRef", {"name": "mix"}, REMOVED,
        "exactly one of mixRef and mix is needed; name a DataMix in mixRef, or write the mix in line", "spec",
    ),
    _job(
        "job-parallelism-one-of", "spec.parallelism", {}, REMOVED,
        "exactly one of parallelismRef and parallelism is needed; "
        "name a ParallelismPolicy in parallelismRef, or write the policy in line", "spec",
    ),
    _job(
        "model-one-of", "spec.model", {"config": SHAPE}, {"preset": "llama-tiny", "config": SHAPE},
        "exactly one of preset, config and custom is needed; give one of the three",
    ),
    Case(
        "model-hidden", "TrainingJob", _shape(), _shape(hidden=100), "spec.model.config.hidden",
        "hidden 100 must be an even multiple of heads 4; change hidden or heads, or give headSize",
    ),
    Case(
        "model-head-size", "TrainingJob", _shape(hidden=100, headSize=24), _shape(headSize=25), "spec.model.config.headSize",
        "headSize 25 must be even; change headSize",
    ),
    Case(
        "model-qk", "TrainingJob", _shape(qkNorm="RMSNorm"), _shape(qkNorm="RMSNorm", qkvBias="Learned"),
        "spec.model.config.qkNorm",
        "qkvBias and qkNorm exclude each other: no family has both; set one of the two to None",
    ),
    Case(
        "rope-factor", "TrainingJob", _shape(ropeScaling={"type": "Linear", "factor": "1"}),
        _shape(ropeScaling={"type": "Linear", "factor": "0.9"}), "spec.model.config.ropeScaling.factor",
        "factor must be at least 1; give a factor such as 8",
    ),
    Case(
        "rope-frequencies", "TrainingJob", _shape(ropeScaling={"type": "Llama3", "factor": "8", "lowFreqFactor": "3.9"}),
        _shape(ropeScaling={"type": "Llama3", "factor": "8", "lowFreqFactor": "4"}),
        "spec.model.config.ropeScaling.lowFreqFactor",
        "lowFreqFactor must be above 0 and below highFreqFactor; change one of the two",
    ),
    Case(
        "custom-heads", "TrainingJob", _custom(), _custom(hidden=130), "spec.model.custom.hidden",
        "hidden 130 must be a multiple of heads 4; change hidden or heads",
    ),
    Case(
        "custom-kv-heads", "TrainingJob", _custom(kvHeads=2), _custom(kvHeads=3), "spec.model.custom.kvHeads",
        "kvHeads 3 must divide heads 4; change heads or kvHeads",
    ),
    Case(
        "model-kv-heads", "TrainingJob", _shape(kvHeads=1), _shape(kvHeads=3), "spec.model.config.kvHeads",
        "kvHeads 3 must divide heads 4; change heads or kvHeads",
    ),
    _job(
        "batch-sequence", "spec.batch", {"tokensPerStep": 2048, "maxSequenceTokens": 2048},
        {"tokensPerStep": 2047, "maxSequenceTokens": 2048},
        "maxSequenceTokens 2048 may be at most tokensPerStep 2047; lower maxSequenceTokens, or raise tokensPerStep",
        "spec.batch.maxSequenceTokens",
    ),
    _job(
        "optimizer-rate", "spec.optimizer.learningRate", "1e-9", "0.0",
        "learningRate must be above 0; give a rate such as 3e-4",
    ),
    _job(
        "optimizer-floor", "spec.optimizer.minimumRatio", "1", "1.01",
        "minimumRatio may be at most 1; give a share of the peak such as 0.1",
    ),
    *(
        _job(
            f"optimizer-{field}", f"spec.optimizer.{field}", "0.99", "1",
            f"{field} must be below 1; give a share such as {share}",
        )
        for field, share in (("beta1", "0.9"), ("beta2", "0.95"), ("momentum", "0.95"))
    ),
    _job(
        "optimizer-epsilon", "spec.optimizer.epsilon", "1e-30", "9e-31",
        "epsilon must be at least 1e-30: without one, parameters whose gradient is 0 are divided by 0; "
        "give a small number such as 1e-8",
    ),
    _job(
        "optimizer-decay-steps", "spec.optimizer", {**_OPTIMIZER, "schedule": "WSD", "decaySteps": 5},
        {**_OPTIMIZER, "schedule": "WSD"},
        "decaySteps is needed with schedule WSD, and must be empty with the others; set both or none",
        "spec.optimizer.decaySteps",
    ),
    _job(
        "optimizer-decay-steps", "spec.optimizer", {**_OPTIMIZER, "schedule": "Linear"},
        {**_OPTIMIZER, "schedule": "Linear", "decaySteps": 5},
        "decaySteps is needed with schedule WSD, and must be empty with the others; set both or none",
        "spec.optimizer.decaySteps",
    ),
    _job(
        "optimizer-decay-stop", "spec.optimizer", {**_OPTIMIZER, "schedule": "WSD", "decaySteps": 90, "warmupSteps": 10},
        {**_OPTIMIZER, "schedule": "WSD", "decaySteps": 91, "warmupSteps": 10},
        "warmupSteps and decaySteps together may be at most stop.steps; lower one of the two, or raise stop.steps",
        "spec.optimizer.decaySteps",
    ),
    _job(
        "evaluation-size", "spec.evaluation", {"everySteps": 5, "tokens": 32 * 8192},
        {"everySteps": 5, "tokens": 32 * 8192 + 1},
        "evaluation.tokens may be at most 32 times batch.tokensPerStep; lower it: a step waits for its evaluation",
        "spec.evaluation.tokens",
    ),
    _job(
        "stop-one-of", "spec.stop", {"tokens": 1_000_000}, {"steps": 5, "tokens": 5},
        "exactly one of steps and tokens is needed; give one of the two",
    ),
    _job(
        "stop-raised", "spec.stop", {"steps": 101}, {"steps": 99},
        "stop may only be raised, in its own unit; give at least as much as before, or suspend the job to stop it now",
        before={"spec.stop": {"steps": 100}},
    ),
    _job(
        "trainers-minimum", "spec.trainers", {"count": 2, "minCount": 2}, {"count": 2, "minCount": 3},
        "count 2 may not be below minCount 3; raise count, or lower minCount", "spec.trainers.count",
    ),
    _job(
        "trainers-maximum", "spec.trainers", {"count": 2, "maxCount": 2}, {"count": 3, "maxCount": 2},
        "count 3 may not be above maxCount 2; lower count, or raise maxCount", "spec.trainers.count",
    ),
    Case(
        "trainers-bounds", "TrainingJob", {"spec.trainers": {"count": 4}, "spec.suspend": True},
        {"spec.trainers": {"count": 5}}, "spec.trainers.count",
        "trainers.count may change while the job runs only if minCount and maxCount bound it; "
        "set suspend: true first, then set both", {"spec.trainers": {"count": 4}},
    ),
    Case(
        "parallelism-tensor", "TrainingJob", {"spec.parallelism.tensor": 2, "spec.trainers.devicesPerTrainer": 4},
        {"spec.parallelism.tensor": 2, "spec.trainers.devicesPerTrainer": 5}, "spec.parallelism.tensor",
        "parallelism.tensor 2 must divide trainers.devicesPerTrainer 5; change one of the two",
    ),
    _job(
        "parallelism-capacity", "spec.batch.maxSequenceTokens", 2048, 2049,
        "a sequence of 2049 tokens does not fit: tokensPerReplica 1024 x min(maxDegree 64, 2 replicas at minCount); "
        "lower batch.maxSequenceTokens, or raise tokensPerReplica, maxDegree or trainers.minCount",
    ),
    *(
        _job(
            f"{field}-template-{keys}", f"spec.{field}.template", {"metadata": {keys: {"team": "a"}}},
            {"metadata": {keys: {"coxswain.dev/role": "trainer"}}},
            f"{keys} that start with coxswain.dev/ are the operator's; use another prefix",
            f"spec.{field}.template.metadata.{keys}",
        )
        for field in ("trainers", "data")
        for keys in ("labels", "annotations")
    ),
    _job(
        "data-loaders", "spec.data.loaders", {"min": 2, "max": 2}, {"min": 3, "max": 2},
        "min 3 may not be above max 2; lower min, or raise max", "spec.data.loaders.min",
    ),
    _job(
        "data-loaders-fixed", "spec.data.loaders", {"min": 2}, {"min": 2, "max": 3},
        "the pool of loaders does not grow in this release: max 3 may not be above min 2; "
        "remove max, and set min to the number of loaders", "spec.data.loaders.max",
    ),
    _job(
        "stragglers-window", "spec.stragglers", {"windowSteps": 4}, {"action": "None", "windowSteps": 4},
        "with action None devices are not watched, so thresholdPercent and windowSteps have no effect; "
        "remove them, or use action Warn",
    ),
    *_policy(
        "parallelism-mode", {"mode": "Auto"}, {"mode": "Auto", "pipeline": 2},
        "mode Auto chooses tensor, pipeline and layout; remove them, or set mode: Fixed", ".mode",
    ),
    *_policy(
        "parallelism-layout", {"layout": LAYOUT}, {"layout": LAYOUT, "pipeline": 2},
        "tensor and pipeline have no effect beside layout; remove them, or remove layout", ".layout",
    ),
    _job(
        "checkpoint-keep-every", "spec.checkpoint.keepEvery", 200, 150,
        "keepEvery 150 must be a multiple of everySteps 100; "
        "checkpoints are only at multiples of everySteps: change one of the two",
    ),
    _job(
        "checkpoint-endpoint", "spec.checkpoint", {"uri": "s3://runs/", "endpoint": {}}, {"uri": "pvc://runs/", "endpoint": {}},
        "an endpoint belongs to an s3:// uri, not to pvc://runs/; remove endpoint, or use an s3:// uri",
        "spec.checkpoint.endpoint",
    ),
    _job(
        "failure-rule-matches", "spec.failurePolicy.rules", [_BY_CODE, _BY_CONDITION, _BY_REASON],
        [{"name": "any", "action": "Fail"}],
        "a rule needs at least one of onExitCodes, onPodConditions, onNodeConditions and onReasons; give one of them",
        "spec.failurePolicy.rules[0]",
    ),
    _job(
        "failure-exit-zero", "spec.failurePolicy.rules", [_BY_CODE],
        [_BY_CONDITION, {**_BY_CODE, "onExitCodes": {"operator": "NotIn", "values": [0, 2]}}],
        "exit code 0 is no failure; remove 0 from values", "spec.failurePolicy.rules[1].onExitCodes.values",
    ),
    _job(
        "queue-name", "spec.scheduling.queueing", {"backend": "Kueue", "queueName": "research"}, {"backend": "Kueue"},
        "queueName is needed with a backend, and must be empty without; set both or none", "spec.scheduling.queueing.queueName",
    ),
    _job(
        "queue-priority", "spec.scheduling.queueing",
        {"backend": "Kueue", "queueName": "research", "priorityClassName": "urgent"}, {"priorityClassName": "urgent"},
        "priorityClassName is Kueue's; set backend to Kueue, or use scheduling.priorityClassName",
        "spec.scheduling.queueing.priorityClassName",
    ),
    _job(
        "topology-one-of", "spec.scheduling.topology", {"required": "zone"}, {"required": "zone", "preferred": "rack"},
        "at most one of required and preferred may be set; keep one of the two",
    ),
    _immutable("TrainingJob", "seed", 1, 2, _MODEL),
    _immutable(
        "TrainingJob", "model", _custom(args={"context": 1})["spec.model"], _custom(args={"context": 2})["spec.model"], _MODEL
    ),
    _immutable("TrainingJob", "batch", _BATCH, {**_BATCH, "tokensPerStep": 1024}, _STREAM),
    _job(
        "trainingjob-evaluation-immutable", "spec.evaluation", {"everySteps": 5, "tokens": 100},
        {"everySteps": 5, "tokens": 101}, "evaluation and its tokens are immutable; create another job: the change gives "
        "another stream", before={"spec.evaluation": {"everySteps": 5, "tokens": 100}},
    ),
    _job(
        "trainingjob-evaluation-suspended", "spec.evaluation", {"everySteps": 5, "tokens": 100},
        {"everySteps": 6, "tokens": 100}, "evaluation.everySteps may change only while the job is suspended; set suspend: true "
        "first, and change it then", "spec.evaluation.everySteps",
        before={"spec.evaluation": {"everySteps": 5, "tokens": 100}},
    ),
    _immutable("TrainingJob", "mixRef", {"name": "mix"}, {"name": "other"}, _STREAM),
    _immutable(
        "TrainingJob", "managedBy", "example.org/a", "example.org/b",
        "delete the job, and create it again: it resumes from its checkpoint",
    ),
    _immutable(
        "TrainingJob", "checkpoint.uri", "s3://runs/a/", "s3://runs/b/",
        "copy the checkpoints, delete the job, and create it again with the new uri",
    ),
    _immutable(
        "TrainingJob", "optimizer.kind", "Muon", "AdamW",
        "create another job, with an export of this one as model.initFrom: kinds keep different moments",
    ),
    _suspended("image", "train:1", "train:2"),
    _suspended("optimizer", _OPTIMIZER, {**_OPTIMIZER, "warmupSteps": 5}),
    _suspended("data", {}, {"prefetchSteps": 3}),
    _suspended("scheduling", {}, {"priorityClassName": "high"}),
    _suspended("trainers.devicesPerTrainer", 1, 2),
    _suspended("trainers.minCount", 2, 3),
    _suspended("trainers.maxCount", 8, REMOVED),
    _suspended("trainers.template", {"nodeSelector": {"gpu": "a"}}, {"nodeSelector": {"gpu": "b"}}),
    Case(
        "trainingjob-parallelismref-suspended", "TrainingJob",
        *2 * ({"spec.parallelism": REMOVED, "spec.parallelismRef": {"name": "b"}},), "spec.parallelismRef",
        "parallelismRef may change only while the job is suspended; set suspend: true first, and change it then",
        {"spec.parallelism": REMOVED, "spec.parallelismRef": {"name": "a"}},
    ),
    _suspended("parallelism", {"hardware": "cpu", "hybridData": {}}, {"hardware": "h100-80g", "hybridData": {}}),
    _suspended("checkpoint.endpoint", {"region": "a"}, {"region": "b"}),
    _suspended("checkpoint.everySteps", 100, 50),
    _suspended("checkpoint.keepLast", 3, 5),
    _suspended("checkpoint.keepEvery", 0, 100),
    _suspended("checkpoint.resume", "Auto", "Never"),
]  # fmt: skip
