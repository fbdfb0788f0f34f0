"""The table of rules within an object: for x-kubernetes-validations and for the offline check.

CEL, with what the API server and the `cel` package have in common: no optional fields (`?.`), no list macros beyond
all, exists, exists_one, filter and map. A rule that says `oldSelf` is a transition rule: it judges updates only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coxswain.api.pod_template import OWN
from coxswain.uris import NO_PATH


@dataclass(frozen=True, slots=True)
class Rule:
    """`cel` must hold for the value at each of the `places` ("Kind:path", `[]` for every item).

    `message` is what people read; `says`, where given, says it with the values (CEL, of one %d or %s each) in it.
    `field` (".name") points further down than the place does.
    """

    name: str
    places: tuple[str, ...]
    cel: str
    message: str
    way_out: str
    says: str = ""
    values: tuple[str, ...] = ()
    field: str = ""

    @property
    def is_transition(self) -> bool:
        return "oldSelf" in self.cel

    @property
    def whole_message(self) -> str:
        return f"{self.message}; {self.way_out}"

    @property
    def whole_expression(self) -> str:
        """The message expression with the way out, or nothing.

        `format` and not `+`: the API server's cost estimate takes string(integer) for endless.
        """
        return f"'{self.says}; {self.way_out}'.format([{', '.join(self.values)}])" if self.says else ""


_JOB = "TrainingJob:spec"
_MIX = ("DataMix:spec", f"{_JOB}.mix")
_PHASE = tuple(f"{place}.phases[]" for place in _MIX)


def _never(kind: str, field: str, way_out: str, optional: bool = False) -> Rule:
    name = f"{kind}-{field}-immutable".lower()
    return Rule(name, (f"{kind}:spec",), _same(field, optional), f"{field} is immutable", way_out, field=f".{field}")


def _suspended(field: str, optional: bool = False) -> Rule:
    """The field may change only in an update of a job that was suspended."""
    cel = f"oldSelf.suspend || ({_same(field, optional)})"
    name = f"trainingjob-{field.replace('.', '-')}-suspended".lower()
    message = f"{field} may change only while the job is suspended"
    return Rule(name, (_JOB,), cel, message, "set suspend: true first, and change it then", field=f".{field}")


def _same(field: str, optional: bool) -> str:
    if not optional:
        return f"self.{field} == oldSelf.{field}"
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"


_REPLICAS = (
    "((has(self.trainers.minCount) ? self.trainers.minCount : self.trainers.count) * self.trainers.devicesPerTrainer"
    " / (self.parallelism.tensor * self.parallelism.pipeline))"
)
_HYBRID = "self.parallelism.hybridData"
_SHAPED = "!has(self.parallelism) || has(self.parallelism.layout)"
_POLICY = ("ParallelismPolicy:spec", f"{_JOB}.parallelism")

MIX_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "mix-weight", _MIX, "self.sources.exists(s, s.weight > 0)",
        "at least one source must have a weight above 0", "raise a weight", field=".sources",
    ),
    Rule(
        "mix-phase-names", _MIX, "self.phases.all(p, p.weights.all(w, self.sources.exists(s, s.name == w.name)))",
        "phases may give weights only to sources of this mix", "use the names in sources", field=".phases",
    ),
    Rule(
        "mix-phase-unit", _MIX, "self.phases.all(p, has(p.fromStep)) || self.phases.all(p, has(p.fromTokens))",
        "phases must all start by fromStep or all by fromTokens", "use one of the two throughout", field=".phases",
    ),
    Rule(
        "mix-phase-distinct", _MIX,
        "self.phases.all(p, (!has(p.fromStep) || self.phases.exists_one(q, has(q.fromStep) && q.fromStep == p.fromStep))"
        " && (!has(p.fromTokens) || self.phases.exists_one(q, has(q.fromTokens) && q.fromTokens == p.fromTokens)))",
        "no two phases may start at the same step or token count", "merge them, or move one", field=".phases",
    ),
    Rule(
        "mix-phase-start", _PHASE, "has(self.fromStep) != has(self.fromTokens)",
        "a phase has exactly one of fromStep and fromTokens", "give one of the two",
    ),
    Rule(
        "mix-phase-weight", _PHASE, "self.weights.exists(w, w.weight > 0)",
        "at least one weight of a phase must be above 0", "raise a weight", field=".weights",
    ),
    Rule(
        "mix-seed-immutable", _MIX, "self.seed == oldSelf.seed",
        "seed is immutable", "create another DataMix: the change gives another stream", field=".seed",
    ),
    Rule(
        "mix-longsequences-immutable", _MIX, "self.longSequences == oldSelf.longSequences",
        "longSequences is immutable", "create another DataMix: the change gives another stream", field=".longSequences",
    ),
    Rule(
        "mix-sources-immutable", _MIX,
        "size(self.sources) == size(oldSelf.sources) && self.sources.all(s, oldSelf.sources.exists(o, o.name == s.name "
        "&& o.sourceRef.name == s.sourceRef.name))",
        "names and sourceRefs of the sources are immutable; only weight and maxPasses may change",
        "create another DataMix: the change gives another stream", field=".sources",
    ),
)  # fmt: skip

_URIS = (
    "DataSource:spec", "DataSource:spec.tokenizer.file", "ParallelismPolicy:spec.profile",
    *(f"{_JOB}.{field}" for field in ("checkpoint", "model.initFrom", "parallelism.profile")),
)  # fmt: skip

URI_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "uri-path-in-bucket", _URIS, f"!self.uri.matches(r'{NO_PATH}')",
        "no part of a path in a bucket may be empty, '.' or '..', or have a control character",
        "write the path as S3 lists it", field=".uri",
    ),
    Rule(
        "uri-encoded-nul", _URIS, "self.uri.startsWith('s3://') || !self.uri.contains('%00')",
        "%00 stands for a NUL, which no path holds", "remove it, or write a % as %25", field=".uri",
    ),
)  # fmt: skip

SOURCE_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "tokenizer-one-of", ("DataSource:spec.tokenizer",), "has(self.bytes) != has(self.file)",
        "a tokenizer is exactly one of bytes and file", "give one of the two",
    ),
    Rule(
        "source-endpoint", ("DataSource:spec",), "!has(self.endpoint) || self.uri.startsWith('s3://')",
        "an endpoint belongs to an s3:// uri", "remove endpoint, or use an s3:// uri", field=".endpoint",
        says="an endpoint belongs to an s3:// uri, not to %s", values=("self.uri",),
    ),
    *(
        _never("DataSource", field, "create another DataSource: the change gives another corpus")
        for field in ("uri", "format", "include", "textField", "tokenizer")
    ),
)  # fmt: skip

JOB_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "job-name-length", ("TrainingJob:",), "size(self.metadata.name) <= 40",
        "the name may have at most 40 characters", "shorten it: pods and services are named after it", field=".metadata.name",
        says="the name has %d characters, at most 40 are allowed", values=("size(self.metadata.name)",),
    ),
    Rule(
        "job-name-label", ("TrainingJob:",), "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "the name must be lower-case letters, digits and -, starting with a letter",
        "rename it: pods and services are named after it", field=".metadata.name",
        says="the name %s must be lower-case letters, digits and -, starting with a letter", values=("self.metadata.name",),
    ),
    Rule(
        "job-mix-one-of", (_JOB,), "has(self.mixRef) != has(self.mix)",
        "exactly one of mixRef and mix is needed", "name a DataMix in mixRef, or write the mix in line",
    ),
    Rule(
        "job-parallelism-one-of", (_JOB,), "has(self.parallelismRef) != has(self.parallelism)",
        "exactly one of parallelismRef and parallelism is needed",
        "name a ParallelismPolicy in parallelismRef, or write the policy in line",
    ),
    Rule(
        "model-one-of", (f"{_JOB}.model",),
        "(has(self.preset) ? 1 : 0) + (has(self.config) ? 1 : 0) + (has(self.custom) ? 1 : 0) == 1",
        "exactly one of preset, config and custom is needed", "give one of the three",
    ),
    Rule(
        "model-hidden", (f"{_JOB}.model.config",), "self.headSize > 0 || self.hidden % (2 * self.heads) == 0",
        "hidden must be an even multiple of heads", "change hidden or heads, or give headSize", field=".hidden",
        says="hidden %d must be an even multiple of heads %d", values=("self.hidden", "self.heads"),
    ),
    Rule(
        "model-head-size", (f"{_JOB}.model.config",), "self.headSize % 2 == 0",
        "headSize must be even", "change headSize", field=".headSize",
        says="headSize %d must be even", values=("self.headSize",),
    ),
    Rule(
        "model-qk", (f"{_JOB}.model.config",), "self.qkvBias == 'None' || self.qkNorm == 'None'",
        "qkvBias and qkNorm exclude each other: no family has both", "set one of the two to None", field=".qkNorm",
    ),
    Rule(
        "rope-factor", (f"{_JOB}.model.config.ropeScaling",), "double(self.factor) >= 1.0",
        "factor must be at least 1", "give a factor such as 8", field=".factor",
    ),
    Rule(
        "rope-frequencies", (f"{_JOB}.model.config.ropeScaling",),
        "double(self.lowFreqFactor) > 0.0 && double(self.lowFreqFactor) < double(self.highFreqFactor)",
        "lowFreqFactor must be above 0 and below highFreqFactor", "change one of the two", field=".lowFreqFactor",
    ),
    Rule(
        "custom-heads", (f"{_JOB}.model.custom",), "self.hidden % self.heads == 0",
        "hidden must be a multiple of heads", "change hidden or heads", field=".hidden",
        says="hidden %d must be a multiple of heads %d", values=("self.hidden", "self.heads"),
    ),
    Rule(
        "custom-kv-heads", (f"{_JOB}.model.custom",), "self.kvHeads == 0 || self.heads % self.kvHeads == 0",
        "kvHeads must divide heads", "change heads or kvHeads", field=".kvHeads",
        says="kvHeads %d must divide heads %d", values=("self.kvHeads", "self.heads"),
    ),
    Rule(
        "model-kv-heads", (f"{_JOB}.model.config",), "self.heads % self.kvHeads == 0",
        "kvHeads must divide heads", "change heads or kvHeads", field=".kvHeads",
        says="kvHeads %d must divide heads %d", values=("self.kvHeads", "self.heads"),
    ),
    Rule(
        "batch-sequence", (f"{_JOB}.batch",), "self.maxSequenceTokens <= self.tokensPerStep",
        "maxSequenceTokens may be at most tokensPerStep", "lower maxSequenceTokens, or raise tokensPerStep",
        says="maxSequenceTokens %d may be at most tokensPerStep %d", values=("self.maxSequenceTokens", "self.tokensPerStep"),
        field=".maxSequenceTokens",
    ),
    Rule(
        "optimizer-rate", (f"{_JOB}.optimizer",), "double(self.learningRate) > 0.0",
        "learningRate must be above 0", "give a rate such as 3e-4", field=".learningRate",
    ),
    Rule(
        "optimizer-floor", (f"{_JOB}.optimizer",), "double(self.minimumRatio) <= 1.0",
        "minimumRatio may be at most 1", "give a share of the peak such as 0.1", field=".minimumRatio",
    ),
    *(
        Rule(
            f"optimizer-{field}", (f"{_JOB}.optimizer",), f"double(self.{field}) < 1.0",
            f"{field} must be below 1", f"give a share such as {share}", field=f".{field}",
        )
        for field, share in (("beta1", "0.9"), ("beta2", "0.95"), ("momentum", "0.95"))
    ),
    Rule(
        "optimizer-epsilon", (f"{_JOB}.optimizer",), "double(self.epsilon) >= 1e-30",
        "epsilon must be at least 1e-30: without one, parameters whose gradient is 0 are divided by 0",
        "give a small number such as 1e-8", field=".epsilon",
    ),
    Rule(
        "optimizer-decay-steps", (f"{_JOB}.optimizer",), "has(self.decaySteps) == (self.schedule == 'WSD')",
        "decaySteps is needed with schedule WSD, and must be empty with the others", "set both or none", field=".decaySteps",
    ),
    Rule(
        "optimizer-decay-stop", (_JOB,),
        "!has(self.optimizer.decaySteps) || !has(self.stop.steps) || "
        "self.optimizer.warmupSteps + self.optimizer.decaySteps <= self.stop.steps",
        "warmupSteps and decaySteps together may be at most stop.steps", "lower one of the two, or raise stop.steps",
        field=".optimizer.decaySteps",
    ),
    Rule(
        "evaluation-size", (_JOB,), "!has(self.evaluation) || self.evaluation.tokens <= 32 * self.batch.tokensPerStep",
        "evaluation.tokens may be at most 32 times batch.tokensPerStep", "lower it: a step waits for its evaluation",
        field=".evaluation.tokens",
    ),
    Rule(
        "stop-one-of", (f"{_JOB}.stop",), "has(self.steps) != has(self.tokens)",
        "exactly one of steps and tokens is needed", "give one of the two",
    ),
    Rule(
        "stop-raised", (f"{_JOB}.stop",),
        "(!has(oldSelf.steps) || has(self.steps) && self.steps >= oldSelf.steps) && "
        "(!has(oldSelf.tokens) || has(self.tokens) && self.tokens >= oldSelf.tokens)",
        "stop may only be raised, in its own unit", "give at least as much as before, or suspend the job to stop it now",
    ),
    Rule(
        "trainers-minimum", (f"{_JOB}.trainers",), "!has(self.minCount) || self.count >= self.minCount",
        "count may not be below minCount", "raise count, or lower minCount", field=".count",
        says="count %d may not be below minCount %d", values=("self.count", "self.minCount"),
    ),
    Rule(
        "trainers-maximum", (f"{_JOB}.trainers",), "!has(self.maxCount) || self.count <= self.maxCount",
        "count may not be above maxCount", "lower count, or raise maxCount", field=".count",
        says="count %d may not be above maxCount %d", values=("self.count", "self.maxCount"),
    ),
    Rule(
        "trainers-bounds", (f"{_JOB}",),
        "oldSelf.suspend || self.trainers.count == oldSelf.trainers.count || "
        "(has(self.trainers.minCount) && has(self.trainers.maxCount))",
        "trainers.count may change while the job runs only if minCount and maxCount bound it",
        "set suspend: true first, then set both", field=".trainers.count",
    ),
    Rule(
        "parallelism-tensor", (_JOB,), f"{_SHAPED} || self.trainers.devicesPerTrainer % self.parallelism.tensor == 0",
        "parallelism.tensor must divide trainers.devicesPerTrainer", "change one of the two", field=".parallelism.tensor",
        says="parallelism.tensor %d must divide trainers.devicesPerTrainer %d",
        values=("self.parallelism.tensor", "self.trainers.devicesPerTrainer"),
    ),
    Rule(
        "parallelism-capacity", (_JOB,),
        f"{_SHAPED} || (self.batch.maxSequenceTokens <= {_HYBRID}.tokensPerReplica * {_REPLICAS} && "
        f"self.batch.maxSequenceTokens <= {_HYBRID}.tokensPerReplica * {_HYBRID}.maxDegree)",
        "maxSequenceTokens may be at most tokensPerReplica x min(maxDegree, replicas at minCount)",
        "lower batch.maxSequenceTokens, or raise tokensPerReplica, maxDegree or trainers.minCount",
        field=".batch.maxSequenceTokens",
        says="a sequence of %d tokens does not fit: tokensPerReplica %d x min(maxDegree %d, %d replicas at minCount)",
        values=("self.batch.maxSequenceTokens", f"{_HYBRID}.tokensPerReplica", f"{_HYBRID}.maxDegree", _REPLICAS),
    ),
    Rule(
        "stragglers-window", (f"{_JOB}.stragglers",),
        "self.action != 'None' || (self.thresholdPercent == 10 && self.windowSteps == 3)",
        "with action None devices are not watched, so thresholdPercent and windowSteps have no effect",
        "remove them, or use action Warn",
    ),
    *(
        Rule(
            f"{field}-template-{keys}", (f"{_JOB}.{field}.template.metadata",),
            f"!has(self.{keys}) || !self.{keys}.exists(key, key.startsWith('coxswain.dev/'))",
            f"{keys} that start with coxswain.dev/ are the operator's", "use another prefix", field=f".{keys}",
        )
        for field in OWN
        for keys in ("labels", "annotations")
    ),
    Rule(
        "data-loaders", (f"{_JOB}.data.loaders",), "!has(self.max) || self.min <= self.max",
        "min may not be above max", "lower min, or raise max", field=".min",
        says="min %d may not be above max %d", values=("self.min", "self.max"),
    ),
    Rule(
        "data-loaders-fixed", (f"{_JOB}.data.loaders",), "!has(self.max) || self.max <= self.min",
        "the pool of loaders does not grow in this release: max may not be above min",
        "remove max, and set min to the number of loaders", field=".max",
        says="the pool of loaders does not grow in this release: max %d may not be above min %d",
        values=("self.max", "self.min"),
    ),
    Rule(
        "checkpoint-keep-every", (f"{_JOB}.checkpoint",), "self.keepEvery % self.everySteps == 0",
        "keepEvery must be a multiple of everySteps", "checkpoints are only at multiples of everySteps: change one of the two",
        says="keepEvery %d must be a multiple of everySteps %d", values=("self.keepEvery", "self.everySteps"),
        field=".keepEvery",
    ),
    Rule(
        "checkpoint-endpoint", (f"{_JOB}.checkpoint",), "!has(self.endpoint) || self.uri.startsWith('s3://')",
        "an endpoint belongs to an s3:// uri", "remove endpoint, or use an s3:// uri", field=".endpoint",
        says="an endpoint belongs to an s3:// uri, not to %s", values=("self.uri",),
    ),
    Rule(
        "failure-rule-matches", (f"{_JOB}.failurePolicy.rules[]",),
        "has(self.onExitCodes) || has(self.onPodConditions) || has(self.onNodeConditions) || has(self.onReasons)",
        "a rule needs at least one of onExitCodes, onPodConditions, onNodeConditions and onReasons", "give one of them",
    ),
    Rule(
        "failure-exit-zero", (f"{_JOB}.failurePolicy.rules[].onExitCodes",), "self.values.all(v, v != 0)",
        "exit code 0 is no failure", "remove 0 from values", field=".values",
    ),
    Rule(
        "queue-name", (f"{_JOB}.scheduling.queueing",), "(self.backend == 'None') == (self.queueName == '')",
        "queueName is needed with a backend, and must be empty without", "set both or none", field=".queueName",
    ),
    Rule(
        "queue-priority", (f"{_JOB}.scheduling.queueing",), "self.backend == 'Kueue' || self.priorityClassName == ''",
        "priorityClassName is Kueue's", "set backend to Kueue, or use scheduling.priorityClassName",
        field=".priorityClassName",
    ),
    Rule(
        "topology-one-of", (f"{_JOB}.scheduling.topology",), "self.required == '' || self.preferred == ''",
        "at most one of required and preferred may be set", "keep one of the two",
    ),
    _never("TrainingJob", "seed", "create another job: the change gives another model"),
    _never("TrainingJob", "model", "create another job: the change gives another model"),
    _never("TrainingJob", "batch", "create another job: the change gives another stream"),
    Rule(
        "trainingjob-evaluation-immutable", (_JOB,),
        "has(self.evaluation) == has(oldSelf.evaluation) && "
        "(!has(self.evaluation) || self.evaluation.tokens == oldSelf.evaluation.tokens)",
        "evaluation and its tokens are immutable", "create another job: the change gives another stream", field=".evaluation",
    ),
    Rule(
        "trainingjob-evaluation-suspended", (_JOB,),
        "oldSelf.suspend || !has(self.evaluation) || !has(oldSelf.evaluation) || "
        "self.evaluation.everySteps == oldSelf.evaluation.everySteps",
        "evaluation.everySteps may change only while the job is suspended", "set suspend: true first, and change it then",
        field=".evaluation.everySteps",
    ),
    _never("TrainingJob", "mixRef", "create another job: the change gives another stream", optional=True),
    _never("TrainingJob", "managedBy", "delete the job, and create it again: it resumes from its checkpoint", optional=True),
    _never("TrainingJob", "checkpoint.uri", "copy the checkpoints, delete the job, and create it again with the new uri"),
    _never(
        "TrainingJob", "optimizer.kind",
        "create another job, with an export of this one as model.initFrom: kinds keep different moments",
    ),
    *(_suspended(field) for field in ("image", "optimizer", "data", "scheduling", "trainers.devicesPerTrainer")),
    *(_suspended(field, optional=True) for field in ("parallelismRef", "parallelism", "checkpoint.endpoint")),
    *(_suspended(field) for field in ("checkpoint.everySteps", "checkpoint.keepLast", "checkpoint.keepEvery")),
    *(_suspended(f"trainers.{field}", optional=True) for field in ("minCount", "maxCount", "template")),
    _suspended("checkpoint.resume"),
)  # fmt: skip

POLICY_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "parallelism-mode", _POLICY, "self.mode != 'Auto' || self.tensor == 1 && self.pipeline == 1 && !has(self.layout)",
        "mode Auto chooses tensor, pipeline and layout", "remove them, or set mode: Fixed", field=".mode",
    ),
    Rule(
        "parallelism-layout", _POLICY, "!has(self.layout) || self.tensor == 1 && self.pipeline == 1",
        "tensor and pipeline have no effect beside layout", "remove them, or remove layout", field=".layout",
    ),
)  # fmt: skip

QUARANTINE_RULES: Final[tuple[Rule, ...]] = (
    _never("NodeQuarantine", "node", "delete it, and create one of the other node"),
)

RULES: Final[tuple[Rule, ...]] = (*URI_RULES, *SOURCE_RULES, *MIX_RULES, *POLICY_RULES, *JOB_RULES, *QUARANTINE_RULES)
