"""Mode Auto before a pod starts: what it cannot choose for is refused by name, with the way out."""

from __future__ import annotations

from typing import Any

import pytest

from coxswain import models
from coxswain.api.field_errors import FieldError
from coxswain.api.resolve import resolve
from coxswain.api.validate import check
from coxswain.config import JobConfig, ModelConfig
from coxswain.cost import offload
from coxswain.holdings import ParameterSpec
from coxswain.models import parameter_specs
from coxswain.plan.strategy import kinds
from tests.api_samples import sample

GPU = {"mode": "Auto", "hardware": "a100-40g", "hybridData": {"tokensPerReplica": 2048}}


def job(parallelism: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Four trainers, two at least. `_` in a name is a dot."""
    values = {f"spec.{name.replace('_', '.')}": value for name, value in changes.items()}
    return sample("TrainingJob", {"spec.parallelism": parallelism, **values})


def faults(manifest: dict[str, Any]) -> list[FieldError]:
    return check(manifest)


def test_mode_auto_is_accepted_and_reaches_the_coordinator() -> None:
    manifest = job({"mode": "Auto", "hybridData": {"tokensPerReplica": 2048}})
    assert faults(manifest) == []
    config = resolve(manifest, [sample("DataSource")], [sample("DataMix")], [], uid="")
    assert isinstance(config, JobConfig)
    assert config.parallelism.mode == "Auto"


@pytest.mark.parametrize(
    "given", [{"tensor": 2}, {"pipeline": 2}, {"layout": {"replicas": [{"stages": [{"layers": 4}]}]}}]
)
def test_mode_auto_beside_a_layout_of_one_s_own_is_refused(given: dict[str, Any]) -> None:
    (fault, *_) = faults(job({**GPU, **given}))
    assert fault.path == "spec.parallelism.mode"
    assert "mode Auto chooses tensor, pipeline and layout; remove them, or set mode: Fixed" in fault.text


def test_a_model_that_fits_on_no_replica_is_refused_with_what_would_make_it_fit() -> None:
    (fault,) = faults(job(GPU, model={"preset": "llama-70b"}))
    assert (fault.path, fault.reason) == ("spec.parallelism.hardware", "MemoryTooSmall")
    assert "no replica of" in fault.message
    assert "use more trainers, devices with more memory" in fault.way_out


def test_a_model_that_only_recompute_makes_fit_names_that_mode() -> None:
    large = {**GPU, "hybridData": {"tokensPerReplica": 8192}}
    manifest = job(large, model={"preset": "llama-2-7b"}, trainers={"count": 4, "minCount": 4, "maxCount": 4})
    (fault,) = faults(manifest)
    assert "set recompute: Selective" in fault.way_out
    assert (
        faults(
            job(
                {**large, "recompute": "Selective"},
                model={"preset": "llama-2-7b"},
                trainers=manifest["spec"]["trainers"],
            )
        )
        == []
    )


def test_a_model_that_no_power_of_two_of_stages_holds_needs_recompute_and_no_more() -> None:
    large = {"mode": "Auto", "hardware": "h100-80g", "hybridData": {"tokensPerReplica": 8192}}
    trainers = {"count": 3, "minCount": 3, "maxCount": 3, "devicesPerTrainer": 8}
    (fault,) = faults(job(large, model={"preset": "llama-70b"}, trainers=trainers))
    assert "set recompute: Selective" in fault.way_out
    assert faults(job({**large, "recompute": "Selective"}, model={"preset": "llama-70b"}, trainers=trainers)) == []


@pytest.mark.parametrize(("tokens", "helps"), [(1536, True), (2048, False)])
def test_offload_counts_in_what_mode_auto_may_choose_and_is_named_where_it_makes_a_replica_fit(
    tokens: int, helps: bool
) -> None:
    trainers = {"count": 4, "minCount": 4, "maxCount": 4}
    policy = {**GPU, "hybridData": {"tokensPerReplica": tokens}}
    (fault,) = faults(job(policy, model={"preset": "llama-2-7b"}, trainers=trainers))
    assert ("or set offload: Auto" in fault.way_out) is helps
    moved = faults(job({**policy, "offload": "Auto"}, model={"preset": "llama-2-7b"}, trainers=trainers))
    assert ("MemoryTooSmall" in [found.reason for found in moved]) is not helps


@pytest.mark.parametrize(("layers", "fits"), [(22, True), (24, False)])
def test_copies_count_in_what_mode_auto_may_choose(layers: int, fits: bool) -> None:
    """Each of two trainers would hold all of the optimizer's state: its own half, and a copy of the other's."""
    shape = {"layers": layers, "hidden": 4096, "heads": 32, "kvHeads": 32, "feedForward": 11008, "vocabulary": 32000}
    policy = {"mode": "Auto", "hardware": "a100-80g", "recompute": "Full", "hybridData": {"tokensPerReplica": 2048}}
    trainers = {"count": 2, "minCount": 2, "maxCount": 2}
    plain = job(policy, model={"config": shape}, trainers=trainers)
    kept = job(policy, model={"config": shape}, trainers=trainers, recovery={"copies": "EveryStep"})
    assert faults(plain) == []
    assert [fault.reason for fault in faults(kept)] == ([] if fits else ["MemoryTooSmall"])


def test_a_sequence_that_the_replicas_that_fit_cannot_hold_is_refused() -> None:
    trainers = {"count": 4, "minCount": 4, "maxCount": 4}
    policy = {**GPU, "recompute": "Selective", "hybridData": {"tokensPerReplica": 4096}}
    batch = {"tokensPerStep": 65536, "maxSequenceTokens": 16384}
    (fault,) = faults(job(policy, model={"preset": "llama-2-7b"}, trainers=trainers, batch=batch))
    assert (fault.path, fault.reason) == ("spec.batch.maxSequenceTokens", "CapacityTooSmall")
    assert "the smallest that memory allows" in fault.message


def test_a_model_of_one_s_own_is_refused_by_name() -> None:
    own = {"class": "my.models:Decoder", "layers": 4, "hidden": 128, "heads": 4, "feedForward": 384}
    found = faults(job(GPU, model={"custom": own}))
    assert [(f.path, f.reason) for f in found] == [("spec.parallelism.mode", "CustomModelNotSplit")]
    assert found[0].way_out == "set mode: Fixed"


def test_a_deep_model_that_fits_nowhere_is_judged_by_one_look_at_its_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operator judges jobs between renewals of its Lease: one of 1,024 layers took ten seconds."""
    looks: list[int] = []

    def look(model: ModelConfig, vocabulary: int) -> tuple[ParameterSpec, ...]:
        looks.append(model.layers)
        return parameter_specs(model, vocabulary)

    for module in (kinds, offload, models):
        monkeypatch.setattr(module, "parameter_specs", look)
    deep = {"layers": 1024, "hidden": 8064, "heads": 64, "kvHeads": 64, "feedForward": 28672}
    wide = {"mode": "Auto", "hardware": "a100-80g", "hybridData": {"tokensPerReplica": 1_000_000}}
    trainers = {"count": 64, "minCount": 64, "maxCount": 64, "devicesPerTrainer": 64}
    (fault,) = faults(job(wide, model={"config": deep}, trainers=trainers))
    assert fault.reason == "MemoryTooSmall"
    assert sum(looks) < 2 * 1024
