"""What a worker refuses of a hand-over, and how long a constructor lets it wait."""

from __future__ import annotations

import os

import pytest

from coxswain.errors import Retryable
from coxswain_link.step_buffer import Buffer, pack
from tests.unit.test_data_handover import arrays, served


@pytest.mark.parametrize(("generation", "step"), [(1, 4), (3, 4), (2, 3), (2, 5)])
def test_a_step_or_a_generation_that_was_not_asked_for_is_refused(generation, step):
    with served(lambda *_: pack(arrays(generation, step))) as connect:
        with pytest.raises(Retryable, match=f"asked for step 4 of generation 2, got {step} of {generation}"):
            connect().receive(2, 4, 0, 5.0)


@pytest.mark.parametrize(("deadline", "longest"), [(0.0, 0.0), (0.5, 0.5), (60.0, 1.0)])
def test_a_request_waits_as_long_as_the_worker_asks_and_at_most_a_second(deadline, longest):
    waits = []

    def provide(generation: int, step: int, rank: int, wait: float) -> Buffer:
        waits.append(wait)
        return pack(arrays(generation, step))

    with served(provide) as connect:
        connect().receive(1, 0, 0, deadline)
    assert longest - 0.5 <= waits[0] <= longest


def test_a_buffer_that_holds_no_step_is_refused():
    with served(lambda *_: foreign()) as connect, pytest.raises(Retryable, match="something else than a step"):
        connect().receive(1, 0, 0, 5.0)


def foreign() -> Buffer:
    buffer = Buffer(os.memfd_create("other", os.MFD_CLOEXEC))
    os.write(buffer.fd, b"\0" * 64)
    return buffer
