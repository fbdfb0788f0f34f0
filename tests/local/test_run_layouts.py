"""Tensor groups, pipelines and replicas that differ: the stream and the losses of one replica of one device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import zstandard

from coxswain.api.parallelism import HybridData
from coxswain.plan.planners import SLOW
from tests.local.failures import note
from tests.local.jobs import (
    ENDLESS,
    LONGEST,
    NEW_WORLD,
    SERVICES,
    STEPS,
    Run,
    job_objects,
    kill_service,
    stop_recovered,
    whole_run,
)

pytestmark = pytest.mark.timeout(300)

# Of four devices on two trainers, for a model of two layers, two heads and one key head.
SQUARE = {"tensor": 2, "pipeline": 2}  # the second stage is on the second trainer
UNEQUAL = {
    "layout": {
        "replicas": [
            {"stages": [{"layers": 1, "tensor": 2}, {"layers": 1}]},
            {"stages": [{"layers": 2}]},
        ]
    }
}  # fmt: skip


PIPELINES = {"pipeline": 2}  # two replicas of two stages


def run_of(
    folder: Path, corpus: str, checkpoints: Path, parallelism: dict[str, Any], capacity: int = LONGEST, **spec: Any
) -> Run:
    objects = job_objects(corpus, f"file://{checkpoints}", trainers=2, **spec)
    job = objects[-1]["spec"]
    job["trainers"]["devicesPerTrainer"] = 2
    job["parallelism"] |= parallelism
    job["parallelism"]["hybridData"]["tokensPerReplica"] = capacity
    return Run(folder, objects)


def layout_of(run: Run) -> str:
    """As the job's status sums it up."""
    job = json.loads((run.workdir / "cluster/TrainingJob/default/small.json").read_text())
    return str(job["status"]["layout"]["summary"])


def test_unequal_replicas_and_then_tensor_groups_and_stages_train_as_one_replica_whatever_is_killed(
    tmp_path: Path, corpus: str, baseline: Run
) -> None:
    """The second run resumes from the first one's checkpoint, which another layout has written, and loses a worker."""
    first = run_of(tmp_path / "unequal", corpus, tmp_path / "checkpoints", UNEQUAL, loaders=2)
    assert first.run("--until-step", "5") == 0, first.output + first.logs()
    second = run_of(tmp_path / "square", corpus, tmp_path / "checkpoints", SQUARE, stop={"steps": ENDLESS})
    stopped = max(first.steps()) + 1
    loses(second, "worker", after_step=stopped + 2)
    assert min(second.steps()) == stopped < STEPS
    assert_same(first.steps() | second.steps(), baseline)
    assert [layout_of(run) for run in (first, second)] == ["1 x tp2/1pp2 + 1 x tp1pp1", "1 x tp2pp2"]


def loses(run: Run, service: str, after_step: int) -> None:
    """Runs it, kills a process of this service, and stops it once it trains on."""
    cox = run.start()
    footprint = kill_service(run, cox, SERVICES[service], after_step)
    generation = 2 if service in NEW_WORLD else 1
    assert stop_recovered(run, cox, generation) == 0, run.output + run.logs()
    footprint.assert_gone()
    note(run.warnings())


def assert_same(steps: dict[int, Any], baseline: Run) -> None:
    """As many steps as the baseline has, or more, that are its own."""
    mine = [steps[k] for k in range(STEPS)]
    assert [(step["stream_digest"], step["delivered_digest"]) for step in mine] == baseline.digests()
    assert [step["loss"] for step in mine] == pytest.approx(baseline.losses(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("balance", get_args(HybridData.model_fields["balance"].annotation))
def test_a_run_with_any_balance_trains_as_one_replica(
    tmp_path: Path, corpus: str, baseline: Run, balance: str, pipeline: int
) -> None:
    """On four replicas, or on two of two stages. Steps of balances in processes may be the fall-back's, where late."""
    hybrid = {"hybridData": {"balance": balance, "maxDegree": 2}, "pipeline": pipeline}
    run = run_of(tmp_path, corpus, tmp_path / "checkpoints", hybrid, capacity=LONGEST // 2)
    assert run.run() == 0, run.output + run.logs()
    planned = {step["balance"] for step in run.steps().values()}
    assert balance.lower() in planned <= {balance.lower(), "makespan"}
    assert len(planned) == 1 or balance.lower() in SLOW
    assert run.digests() == baseline.digests()
    assert run.losses() == pytest.approx(baseline.losses(), rel=1e-5)


@pytest.mark.slow
def test_rings_over_pipelines_train_as_one_replica(tmp_path: Path, corpus: str, baseline: Run) -> None:
    run = run_of(tmp_path, corpus, tmp_path / "checkpoints", PIPELINES, capacity=LONGEST // 2)
    assert run.run() == 0, run.output + run.logs()
    assert layout_of(run) == "2 x tp1pp2"
    timings = run.lines("timings.jsonl")
    assert any(task["kind"] == "ring" for line in timings for task in line["planned"])
    assert {(rank["replica"], rank["stage"]) for rank in timings[0]["ranks"]} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert run.digests() == baseline.digests()
    assert run.losses() == pytest.approx(baseline.losses(), rel=1e-5)


@pytest.mark.slow
def test_rings_that_exchange_heads_train_as_one_replica(tmp_path: Path, corpus: str) -> None:
    """Rings of four are two groups of two: there are two key heads."""
    shape = {"layers": 2, "hidden": 32, "heads": 4, "kvHeads": 2, "feedForward": 64, "vocabulary": 320}
    spec: dict[str, Any] = {"model": {"config": shape}, "stop": {"steps": 9}}
    whole = whole_run(tmp_path / "one", job_objects(corpus, f"file://{tmp_path}/one", trainers=1, **spec))
    hybrid = {"hybridData": {"attention": "Ulysses", "maxDegree": 4}}
    run = run_of(tmp_path / "four", corpus, tmp_path / "checkpoints", hybrid, capacity=LONGEST // 4, **spec)
    assert run.run() == 0, run.output + run.logs()
    records = (tmp_path / "checkpoints/log/placements").rglob("*.json.zst")
    assert any(b'"ulysses":2' in zstandard.decompress(record.read_bytes()) for record in records)
    assert run.digests() == whole.digests()
    assert run.losses() == pytest.approx(whole.losses(), rel=1e-5)


@pytest.mark.slow
def test_the_loss_of_held_out_documents_is_that_of_one_replica(tmp_path: Path, corpus: str) -> None:
    evaluation = {"evaluation": {"everySteps": 3, "tokens": 700}, "stop": {"steps": 6}}
    whole = whole_run(tmp_path / "one", job_objects(corpus, f"file://{tmp_path}/one", trainers=1, **evaluation))
    square = run_of(tmp_path / "square", corpus, tmp_path / "checkpoints", SQUARE, **evaluation)
    assert square.run() == 0, square.output + square.logs()
    assert square.digests() == whole.digests()
    found = [[run.steps()[k]["evaluation_loss"] for k in (2, 5)] for run in (square, whole)]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
def test_a_killed_service_costs_no_data_under_tensor_groups_and_stages(
    tmp_path: Path, corpus: str, baseline: Run, service: str
) -> None:
    run = run_of(tmp_path, corpus, tmp_path / "checkpoints", SQUARE, stop={"steps": ENDLESS})
    loses(run, service, after_step=4)
    assert_same(run.steps(), baseline)


@pytest.mark.slow
def test_mode_auto_keeps_its_choice_over_a_resume_and_trains_as_one_replica(
    tmp_path: Path, corpus: str, baseline: Run
) -> None:
    run = run_of(tmp_path, corpus, tmp_path / "checkpoints", {"mode": "Auto"})
    assert run.run("--until-step", "5") == 0, run.output + run.logs()
    chosen = layout_of(run)
    assert run.run() == 0, run.output + run.logs()
    said = [line["message"] for line in run.lines("events.jsonl") if line["reason"] == "StrategyChosen"]
    assert len(said) == 1
    assert said[0].startswith(f"{chosen}: ")
    assert layout_of(run) == chosen
    assert run.digests() == baseline.digests()
    assert run.losses() == pytest.approx(baseline.losses(), rel=1e-5)
