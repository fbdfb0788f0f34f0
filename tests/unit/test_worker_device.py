"""Where a worker computes: the job's hardware says it, and not what happens to be there."""

from __future__ import annotations

import pytest
import torch
from torch.distributed import DistBackendError

from coxswain.errors import Refused
from coxswain_train.worker.worker import device_of
from coxswain_train.worker.worlds import is_lost_peer


@pytest.mark.parametrize("there", [True, False])
def test_the_hardware_chooses_the_device_and_a_gpu_that_is_not_there_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert device_of("cpu") == torch.device("cpu")
    if there:
        assert device_of("h100-80g") == torch.device("cuda")
        return
    with pytest.raises(Refused) as refused:
        device_of("h100-80g")
    assert refused.value.reason == "NoDevice"
    assert refused.value.message == (
        "parallelism.hardware: h100-80g, and torch finds no CUDA device here; train where its driver works, "
        "or set hardware: cpu"
    )


def test_two_ranks_on_one_device_have_lost_no_peer() -> None:
    """They would meet in world after world, and nothing would say why."""
    assert is_lost_peer(DistBackendError("NCCL error: remote process exited"))
    assert not is_lost_peer(DistBackendError("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b0"))
