"""Resolved jobs are remembered by what they are resolved from: a pass over the same specs costs no resolution."""

from __future__ import annotations

import json
import marshal
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from coxswain_operator.reconcile.actions import Observed
from coxswain_operator.reconcile.validate import LatestResolutions, resolve_config
from coxswain_operator.views import Manifest
from tests.unit.fake_cluster import data_mix, data_source, manifest, training_job


def observed(uid: str = "one", **spec: Any) -> Observed:
    job = training_job(**spec)
    job["metadata"]["uid"] = uid
    return Observed(job, (data_source(),), (data_mix(),))


def again(seen: Observed, **changes: Any) -> Observed:
    """As an API server sends it once more: equal objects in other memory, with these changes at each one's top."""

    def other(manifest: Manifest) -> Manifest:
        read = json.loads(json.dumps(manifest | changes))
        return {**read, "metadata": {**read["metadata"], "resourceVersion": str(id(read)), "labels": {"team": "nlp"}}}

    return Observed(other(seen.job), tuple(map(other, seen.sources)), tuple(map(other, seen.mixes)))


def test_a_job_is_resolved_once_however_often_its_status_labels_and_versions_change():
    seen = observed()
    first, faults = resolve_config(seen)
    assert first is not None and not faults
    assert resolve_config(again(seen))[0] is first
    assert resolve_config(again(seen, status={"attempt": 3}))[0] is first


@pytest.mark.parametrize(
    "other",
    [
        observed("two"),
        observed(trainers={"count": 3}),
        Observed(observed().job, (data_source(),), ({**data_mix(), "spec": {**data_mix()["spec"], "seed": 8}},)),
    ],
    ids=["another job of the name", "an edited job", "an edited mix"],
)
def test_what_a_resolution_reads_is_never_answered_from_memory_once_it_differs(other: Observed):
    first, second = (resolve_config(seen)[0] for seen in (observed(), other))
    assert None not in (first, second) and first != second


def test_faults_are_remembered_as_well_and_gone_once_the_object_is_there():
    without = Observed(observed().job, (), (data_mix(),))
    (job, faults), found = resolve_config(without), resolve_config(again(without))
    assert job is None and faults and found[1] is faults
    assert resolve_config(observed())[1] == ()


def test_a_job_is_not_resolved_again_for_what_other_jobs_of_its_namespace_read():
    """Where each of 200 jobs has sources and a mix of its own, all of them came to resolve all jobs."""
    seen = observed()
    first, _ = resolve_config(seen)
    others = replace(
        seen,
        sources=(*seen.sources, data_source("theirs")),
        mixes=(*seen.mixes, data_mix("their-mix", "theirs")),
        policies=(manifest("ParallelismPolicy", "their-policy", {}),),
    )
    assert first is not None and resolve_config(others)[0] is first


@pytest.mark.parametrize(
    ("spec", "way_out"),
    [
        ({"mixRef": {"name": "mx"}}, "create the DataMix mx, or name one of this namespace: mix, their-mix"),
        (
            {"parallelism": None, "parallelismRef": {"name": "p"}},
            "create the ParallelismPolicy p, or name one of this namespace: their-policy",
        ),
        (
            {"mixRef": None, "mix": data_mix("mix", "cod")["spec"]},
            "create the DataSource cod, or name one of this namespace: code, theirs",
        ),
    ],
)
def test_a_job_that_names_what_is_not_there_gets_the_names_of_all_that_is(spec: dict[str, Any], way_out: str):
    seen = observed(**spec)
    seen.job["spec"] = {key: value for key, value in seen.job["spec"].items() if value is not None}
    found = replace(
        seen,
        sources=(*seen.sources, data_source("theirs")),
        mixes=(*seen.mixes, data_mix("their-mix", "theirs")),
        policies=(manifest("ParallelismPolicy", "their-policy", {}),),
    )
    assert way_out in "; ".join(fault.message for fault in resolve_config(found)[1])


def test_edits_of_sources_leave_nothing_behind_of_what_jobs_were_resolved_from_before():
    """Each edit resolves each job again that reads it: an operator has 512 MiB for all of them."""
    seen, source = observed(), data_source()

    def edit(number: int) -> None:
        source["spec"]["textField"] = f"{number}" + "x" * 100_000
        resolve_config(replace(seen, sources=(source,)))

    edit(0)
    tracemalloc.start()
    for number in range(1, 50):
        edit(number)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 500_000


def test_the_jobs_that_were_looked_at_last_are_remembered():
    latest, contents = LatestResolutions(most=2), {}
    for uid in ("a", "b", "c"):
        job = observed(uid).job
        head = {"metadata": {"name": "demo", "namespace": "lab"}, "spec": job["spec"]}
        contents[uid] = marshal.dumps((head, [data_source()], [data_mix()], [], uid), 2)
    first = {uid: latest.get(uid, contents[uid]) for uid in ("a", "b")}
    assert latest.get("a", contents["a"]) is first["a"]
    latest.get("c", contents["c"])
    assert latest.get("a", contents["a"]) is first["a"]
    assert latest.get("b", contents["b"]) is not first["b"]
