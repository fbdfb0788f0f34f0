"""What other trainers and operators call a field of ours, so that a refusal names ours.

Kubeflow Trainer and training-operator, JobSet, torchtitan, Hugging Face's Trainer, Megatron-LM, MosaicML Streaming.
"""

from __future__ import annotations

from collections.abc import Sequence

# Our field, as a path below `spec`, and the peers' names for it: lower-case letters and digits alone.
_PEER_NAMES = {
    "trainers.count": "replicas numnodes nnodes numreplicas workers worldsize",
    "trainers.devicesPerTrainer": "numprocpernode nprocpernode numgpus gpus",
    "trainers.template": "resources resourcespernode podtemplate podtemplateoverrides nodeselector tolerations env volumes",
    "stop.steps": "steps maxsteps numsteps totalsteps trainingsteps trainiters maxiters iterations",
    "stop.tokens": "maxtokens totaltokens numtokens",
    "mix.sources": "dataset datasets streams",
    "batch.tokensPerStep": "batchsize globalbatchsize localbatchsize microbatchsize perdevicetrainbatchsize",
    "batch.maxSequenceTokens": "seqlen seqlength sequencelength maxseqlen maxseqlength contextlength blocksize",
    "optimizer.learningRate": "lr maxlr",
    "optimizer.gradientClip": "maxnorm maxgradnorm gradclip clipgrad gradientclipping",
    "parallelism.tensor": "tensorparalleldegree tensorparallel tensormodelparallelsize tp",
    "parallelism.pipeline": "pipelineparalleldegree pipelineparallel pipelinemodelparallelsize pp",
    "parallelism.hybridData.maxDegree": "contextparalleldegree contextparallel contextparallelsize cp",
    "parallelism.recompute": "activationcheckpoint activationcheckpointing gradientcheckpointing",
    "checkpoint.everySteps": "interval savesteps saveinterval",
    "checkpoint.keepLast": "keeplatestk savetotallimit",
    "model.initFrom": "initialloadpath modelnameorpath pretrained pretrainedmodel",
    "failurePolicy": "runpolicy",
    "failurePolicy.maxRestarts": "backofflimit maxretries maxfailures",
    "failurePolicy.rules": "restartpolicy",
    "scheduling.queueing.queueName": "queue queuename",
    "uri": "remote path url location datapath",
    "textField": "textcolumn textkey",
    "sources": "streams datasets",
    "sources[].weight": "proportion ratio share probability",
    "sources[].maxPasses": "epochs repeat numepochs",
    "mix.sources[].weight": "proportion ratio share probability",
    "mix.sources[].maxPasses": "epochs repeat numepochs numtrainepochs",
    "seed": "shuffleseed",
}


def fields_of(peer_name: str) -> Sequence[str]:
    """Our fields, below `spec`, for a peer's name in any spelling: `max_steps`, `max-steps`, `maxSteps`."""
    plain = "".join(letter for letter in peer_name.lower() if letter.isalnum())
    return [ours for ours, names in _PEER_NAMES.items() if plain in names.split()]


def all_fields() -> Sequence[str]:
    return list(_PEER_NAMES)
