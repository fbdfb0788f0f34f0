"""Members as short text, and a status that stays small."""

from __future__ import annotations

import json
import time

from hypothesis import given
from hypothesis import strategies as st

from coxswain_operator.reconcile import reconcile
from coxswain_operator.reconcile.actions import CreatePod, Observed, WriteStatus
from coxswain_operator.reconcile.ranges import decode, encode
from coxswain_operator.views import PodView
from tests.unit.fake_cluster import data_mix, data_source, training_job

members = st.one_of(
    st.just("coordinator"),
    st.builds("{}-{}".format, st.sampled_from(["loader", "trainer"]), st.integers(0, 40)),
)


@given(st.sets(members))
def test_what_is_encoded_is_decoded_again(found: set[str]) -> None:
    assert decode(encode(found)) == found


@given(st.lists(members))
def test_equal_sets_are_equal_text(found: list[str]) -> None:
    assert encode(found) == encode(reversed(found)) == encode(set(found))


def test_thousands_of_members_are_a_short_text() -> None:
    everyone = ["coordinator", "loader-0", *(f"trainer-{i}" for i in range(5000) if i != 17)]
    assert encode(everyone) == "coordinator,loader:0,trainer:0-16+18-4999"


def passed(count: int) -> tuple[float, int]:
    """CPU seconds of a pass over a running gang, the best of three, and the bytes of the status that it writes."""
    job = {**training_job(trainers={"count": count}), "status": {}}
    job["metadata"] |= {"uid": "u", "generation": 1}
    empty = Observed(job=job, sources=(data_source(),), mixes=(data_mix(),), tokens=("t",))
    creates = [a for a in reconcile(empty, 1000.0).actions if isinstance(a, CreatePod)]
    assert len(creates) == count + 2
    pods = tuple(
        PodView(c.member, c.member, c.member.split("-")[0], int(c.member.partition("-")[2] or 0), 0, phase="Running")
        for c in creates
    )
    full = Observed(job=job, sources=empty.sources, mixes=empty.mixes, pods=pods, tokens=("t",))
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        decision = reconcile(full, 1010.0)
        seconds.append(time.process_time() - begin)
    (write,) = [w for w in decision.actions if isinstance(w, WriteStatus)]
    return min(seconds), len(json.dumps(write.status))


def test_a_pass_is_linear_in_the_members_and_its_status_does_not_grow_with_them() -> None:
    (small, few), (large, many) = passed(500), passed(5000)
    assert many <= few + 100 and many < 4096
    assert large < 30 * small + 0.05
    assert large < 1.0
