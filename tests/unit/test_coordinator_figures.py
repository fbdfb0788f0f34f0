"""What the coordinator says of closed steps: rates, log lines and numbers by trainer, with made-up data."""

from __future__ import annotations

import logging
from math import prod
from pathlib import Path

import pytest
from msgspec.structs import replace

from coxswain.config import CustomModel
from coxswain.cost.hardware import Hardware, Rates
from coxswain.digests import STREAM_SEED
from coxswain.flops import step_flops
from coxswain.membership.stream import initial_cursor
from coxswain.membership.values import Sequence
from coxswain.models import parameter_specs
from coxswain.termination import TERMINATION_BYTES
from coxswain.trainer_figures import RankStep, StepFigures, slow_words, step_figures, trainer_figures
from coxswain.wire import CheckpointManifest, DeliveredDigests, Evaluation, Fault, Finished, JobReport, StepLine, Totals
from coxswain_coordinator.api.report import job_report, termination_message
from coxswain_coordinator.api.status_page import page
from coxswain_coordinator.state.job_state import JobState
from coxswain_coordinator.state.rates import step_seconds, tokens_per_second
from coxswain_coordinator.state.session import Session
from coxswain_coordinator.state.step_log import StepLog, describe, short, slowest_ranks
from coxswain_coordinator.steps import Closed, PlannedTask, RankTiming, StepTracker, TimingLine, seconds_beside_tasks
from coxswain_link.metrics import build
from tests.unit.coordinator_fakes import make_job
from tests.unit.coordinator_samples import agents, committed, plan, replace_cursors, report, session

MEASURED = Hardware(
    rates=Rates(
        linear_tflops=1, attention_tflops=1, kv_element_bytes=4, inside_node_gbps=9, between_nodes_gbps=1, task_ms=1,
        update_ns_per_parameter=3,
    )
)  # fmt: skip


def closed(tmp_path, ends: list[float], arrival: float = 5000.0, **changes) -> list[Closed]:
    """Steps of 11 tokens that end at these times by the clock of every rank; all arrive at once."""
    book = StepTracker(session(make_job(tmp_path)).world.seats, 0, STREAM_SEED)
    return [close(book, step, ended, arrival, **changes) for step, ended in enumerate(ends)]


def close(book: StepTracker, step: int, ended: float, arrival: float, **changes) -> Closed:
    for rank in (0, 1):
        book.add_report(replace(report(rank, step), ended=ended, **changes))
    book.add_delivered(DeliveredDigests(1, step, ((0, "11" * 32), (1, "22" * 32))))
    found = book.close(plan(step), arrival)
    assert found is not None
    return found


def lines(found: list[Closed]) -> list[StepLine]:
    return [closed.line for closed in found]


@pytest.mark.parametrize(
    ("ends", "seconds", "rate"),
    [
        ([100.0, 105.0, 110.0], 5.0, 2.2),  # 1 s between two steps of 4 s
        ([100.0], 4.0, 2.75),
        ([100.0, 105.0], 5.0, 2.2),
        ([100.0, 101.0, 102.0], 4.0, 2.75),  # the clock was set back: steps do not overlap
        ([0.0, 0.0, 0.0], 4.0, 2.75),  # reports of an earlier release name no end
    ],
)
def test_a_rate_follows_from_the_times_of_the_steps_and_not_from_their_arrival(tmp_path, ends, seconds, rate):
    found = lines(closed(tmp_path, ends))
    assert (step_seconds(found), tokens_per_second(found)) == (seconds, rate)


def test_a_step_takes_as_long_as_its_slowest_rank_and_idles_by_the_time_of_all(tmp_path):
    book = StepTracker(session(make_job(tmp_path)).world.seats, 0, STREAM_SEED)
    for rank, (seconds, compute, waited) in enumerate(((4.0, 3.0, 0.5), (8.0, 5.0, 0.25))):
        book.add_report(report(rank, 0, seconds=seconds, compute_seconds=compute, data_wait_seconds=waited))
    book.add_delivered(DeliveredDigests(1, 0, ((0, "11" * 32), (1, "22" * 32))))
    found = book.close(plan(0), 5000.0)
    assert found is not None
    assert (found.line.seconds, found.line.idle_fraction, found.line.data_wait_seconds) == (8.0, 0.5, 0.5)


def test_a_rate_is_that_of_the_newest_world_alone(tmp_path):
    found = lines(closed(tmp_path, [100.0, 105.0, 110.0]))
    earlier = [replace(line, worldGeneration=0, time=2 * line.time) for line in found]
    assert tokens_per_second([*earlier, *found]) == 2.2
    assert tokens_per_second([]) == step_seconds([]) == 0.0


# --- numbers by trainer ----------------------------------------------------------------------------------------------


def figures(*ranks: tuple[int, float, float], steps: int = 5) -> list[StepFigures]:
    """Steps of 4 s; by rank: its trainer, compute, planned compute."""
    step = {
        (trainer, rank): RankStep(4.0, compute, 0.25, planned) for rank, (trainer, compute, planned) in enumerate(ranks)
    }
    return [step] * steps


def words(found: list[StepFigures]) -> str:
    return slow_words(trainer_figures(found), "trainer-{}".format)


def test_a_trainer_has_the_means_of_its_slowest_rank_and_the_slowest_trainer_is_first():
    found = trainer_figures(figures((0, 1.0, 1.0), (0, 1.5, 1.0), (1, 2.0, 1.0), (1, 1.0, 1.0)))
    assert [(f.trainer, f.rank, f.steps, f.compute_seconds, f.wait_seconds, f.slowdown) for f in found] == [
        (1, 2, 5, 2.0, 1.75, 2.0),
        (0, 1, 5, 1.5, 2.25, 1.5),
    ]
    assert {f.data_wait_seconds for f in found} == {0.25}
    assert trainer_figures([]) == ()


def test_a_rank_with_more_work_is_not_slow_and_one_without_work_is_unknown():
    found = trainer_figures(figures((0, 1.0, 1.0), (1, 3.0, 3.0), (2, 0.0, 0.0), (3, 1.0, 0.0), (4, 0.0, 1.0)))
    assert [(f.trainer, f.slowdown) for f in found] == [(1, 1.0), (0, 1.0), (3, 0.0), (2, 0.0), (4, 0.0)]
    assert [f.slowdown for f in trainer_figures(figures((0, 0.0, 0.0)))] == [0.0]
    assert [f.slowdown for f in trainer_figures(figures((0, 0.0, 1.0), (1, 1.0, 1.0)))] == [1.0, 0.0]


def test_a_stage_with_fewer_layers_is_not_fast_and_one_with_more_is_not_slow():
    planned = [PlannedTask(0, "pack", (0,), (0,), 10, 0.0, 4.0)]

    def rank(number: int, compute: float, share: float) -> RankTiming:
        return RankTiming(number, 0, number, number, 0, 9.0, compute, 0.0, 0.0, (), share=share)

    found = step_figures(planned, [rank(0, 4.0, 1.0), rank(1, 1.0, 0.25), rank(2, 2.0, 0.25)])
    assert [(f.trainer, f.slowdown) for f in trainer_figures([found])] == [(2, 2.0), (0, 1.0), (1, 1.0)]


def test_of_trainers_that_are_equally_fast_the_one_that_waits_longest_for_data_is_first():
    step = {(n, n): RankStep(1.0, 1.0, data, 1.0) for n, data in enumerate((0.25, 0.5, 0.5))}
    found = trainer_figures([step])
    assert [(f.trainer, f.data_wait_seconds, f.wait_seconds) for f in found] == [(1, 0.5, 0), (2, 0.5, 0), (0, 0.25, 0)]


@pytest.mark.parametrize(
    ("ranks", "steps", "said"),
    [
        (((0, 1.0, 1.0), (1, 1.49, 1.0)), 5, ""),
        (((0, 1.0, 1.0), (1, 1.5, 1.0)), 5, "trainer-1 computes 1.5 x as long as the median for the same work"),
        (tuple((n, 1.0 + n * (n > 3), 1.0) for n in range(7)), 5,
         "trainer-6 computes 7.0 x as long as the median for the same work; also trainer-5 6.0 x, trainer-4 5.0 x"),
        (((0, 1.0, 1.0), (1, 3.0, 1.0)), 4, ""),  # a step may be slow by chance
        (((0, 1.0, 1.0), (1, 3.0, 1.0)), 5, "trainer-1 computes 3.0 x as long as the median for the same work"),
        (((0, 1.0, 1.0), (1, 2.0, 1.0), (2, 2.5, 1.0), (3, 1.0, 1.0)), 5,
         "trainer-2 computes 2.5 x as long as the median for the same work; also trainer-1 2.0 x"),
        (tuple((n, 1.0 + n * (n > 4), 1.0) for n in range(9)), 5,
         "trainer-8 computes 9.0 x as long as the median for the same work; also trainer-7 8.0 x, trainer-6 7.0 x, 1 more"),
    ],
)  # fmt: skip
def test_slow_trainers_are_named_in_words(ranks, steps, said):
    assert words(figures(*ranks, steps=steps)) == said


class Run:
    """A job with two trainers on nodes, in its first world."""

    def __init__(self, folder: Path) -> None:
        self.now, job = 1000.0, make_job(folder)
        self.metrics = build("coordinator")
        self.state = JobState(job, self.metrics, None, lambda: self.now)
        self.state.history.log = StepLog(lambda: self.now)
        self.enter(session(job))

    def enter(self, found: Session) -> None:
        for agent, node in zip(agents(2), ("node-a", "node-b"), strict=True):
            self.state.register(replace(agent, node=node))
        found.add(replace_cursors(committed(*range(8)), found))
        self.session = found
        self.state.index_progress.index = object()
        self.state.enter_world(found)

    def step(
        self, number: int, seconds: float = 0.0, compute: tuple[float, float] = (1.0, 3.0), **changes: float
    ) -> None:
        """Closes a step, `seconds` after the one before."""
        self.now += seconds
        for rank in (0, 1):
            ended = self.now - (0.1 * rank)
            self.session.book.add_report(report(rank, number, ended=ended, compute_seconds=compute[rank], **changes))
        self.session.book.add_delivered(DeliveredDigests(1, number, ((0, "11" * 32), (1, "22" * 32))))
        assert self.state.close_step(self.session)
        self.state.log_steps()

    def save(self, step: int) -> None:
        job = self.state.job
        manifest = CheckpointManifest(
            1, job.name, step, 1, initial_cursor(job.mix), "", 0, "", "", "", 320, (), self.now
        )
        self.state.add_manifest(self.session, manifest, 0.5)

    def report(self) -> JobReport:
        return job_report(self.state)


@pytest.fixture
def run(tmp_path, caplog) -> Run:
    caplog.set_level(logging.INFO, "coxswain_coordinator")
    return Run(tmp_path)


def test_a_report_has_the_numbers_of_each_trainer_with_its_pod_and_node(run):
    run.step(0)
    first, second = run.report().trainers
    assert (first.name, first.pod, first.node, first.rank) == ("trainer-1", "pod-1", "node-b", 1)
    assert (first.compute_seconds, first.data_wait_seconds, first.wait_seconds) == (3.0, 0.2, pytest.approx(0.8))
    assert (second.name, second.compute_seconds, second.slowdown) == ("trainer-0", 1.0, 1.0)
    assert first.slowdown == pytest.approx(3.0 * 2 / 3)  # the plan gives it 3 s for the 2 s of the other


def test_a_slow_trainer_is_named_in_the_report_and_on_the_page(run):
    for number in range(5):
        run.step(number)
    said = "trainer-1 (node-b) computes 2.0 x as long as the median for the same work"
    assert run.report().slow == said
    text = page("demo", run.report())
    assert said in text
    assert "<td>trainer-1<td>node-b<td>pod-1<td>1<td>3<td>0.2<td>0.8<td>2.0 x" in text


def test_a_last_step_of_a_world_that_some_ranks_have_not_reported_is_in_no_mean_of_trainers(run):
    run.step(0)
    before = run.report().trainers
    run.session.book.add_report(report(0, 1, compute_seconds=9.0, totals=Totals(5.0, 7)))
    run.session.book.add_delivered(DeliveredDigests(1, 1, ((0, "11" * 32), (1, "22" * 32))))
    assert run.state.close_step(run.session, world_over=True)
    assert (run.report().step, run.report().trainers) == (2, before)


def test_the_page_shows_neither_an_idle_share_nor_a_time_left_before_a_step_is_closed(run):
    assert [word for word in ("<td>Idle", "<td>Remaining", "<td>Loss") if word in page("demo", run.report())] == []
    run.step(0)
    text = page("demo", run.report())
    assert f"<td>Idle<td>{run.report().idle_fraction:.1%}" in text
    assert f"<td>Remaining<td>{run.report().eta_seconds} s" in text


def test_a_report_of_a_thousand_trainers_names_the_64_slowest_and_its_termination_message_none(run):
    ranks = tuple(RankTiming(n, 0, n, n, 0, 4.0, 1.0 + n, 0.0, 0.0, (), share=0.25) for n in range(1000))
    planned = (PlannedTask(0, "pack", (0,), (0,), 10, 0.0, 4.0),)
    run.session.world = replace(run.session.world, trainers=tuple(f"trainer-{n}" for n in range(1000)))
    run.step(0)
    (line,), history = run.state.history.recent, run.state.history
    history.begin_at(1)
    for step in range(1, 6):
        history.add(replace(line, step=step), TimingLine(step, 1, 1, 4.0, 4.0, planned, ranks), ranks)
    assert [t.name for t in run.report().trainers] == [f"trainer-{n}" for n in range(999, 935, -1)]
    assert len(termination_message(run.report())) <= TERMINATION_BYTES
    assert b"trainer-999" not in termination_message(replace(run.report(), slow=""))


def test_metrics_have_one_series_for_each_trainer_of_the_present_world(run):
    def series() -> list[str]:
        text = run.metrics.exposition().decode().splitlines()
        return [line for line in text if line.startswith("coxswain_trainer_")]

    run.step(0)
    assert series() == [
        'coxswain_trainer_compute_seconds{node="node-b",trainer="trainer-1"} 3.0',
        'coxswain_trainer_compute_seconds{node="node-a",trainer="trainer-0"} 1.0',
        'coxswain_trainer_wait_seconds{node="node-b",trainer="trainer-1"} 1.0',
        'coxswain_trainer_wait_seconds{node="node-a",trainer="trainer-0"} 3.0',
        'coxswain_trainer_slowdown{node="node-b",trainer="trainer-1"} 2.0',
        'coxswain_trainer_slowdown{node="node-a",trainer="trainer-0"} 1.0',
    ]
    run.enter(session(run.state.job))
    run.state.log_steps(now=True)
    assert series() == []


def test_rate_norm_and_utilisation_of_a_step_are_in_its_line_the_report_the_metrics_and_on_the_page(run):
    hardware = replace(run.state.job.parallelism, hardware="h100-80g")
    run.state.job = replace(run.state.job, parallelism=hardware)
    run.step(0)
    (line,), found = run.state.history.recent, run.report()
    flops = step_flops(run.state.job.model, run.session.world.vocabulary, [6, 5])
    assert line.mfu == pytest.approx(flops / (4.0 * 2 * 989e12), rel=1e-12)
    assert (found.gradient_norm, found.learning_rate, found.mfu) == (1.5, 1e-3, line.mfu)
    text = run.metrics.exposition().decode()
    assert "coxswain_gradient_norm 1.5\n" in text
    assert "coxswain_learning_rate 0.001\n" in text
    assert f'coxswain_model_flops_utilization{{hardware="cpu"}} {line.mfu}' in text
    assert "<td>Gradient norm<td>1.5</tr>" in page("demo", found)
    assert "<td>Model FLOPs utilisation<td>0.0%</tr>" in page("demo", found)


def test_the_metrics_of_steps_are_those_of_their_lines_the_gauges_of_the_last_one(run):
    for step, (over, makespan) in enumerate(((1.5, 2.0), (1.25, 3.0))):
        run.session.add(committed(step, makespan_over_bound=over, makespan_seconds=makespan))
    run.step(0)
    run.step(1, 5.0, compute=(1.0, 2.0))
    first, last = run.state.history.recent
    found = dict(line.rsplit(" ", 1) for line in run.metrics.exposition().decode().splitlines() if line[0] != "#")
    wanted = {
        "coxswain_step": 1, "coxswain_loss": last.loss, "coxswain_idle_fraction": last.idle_fraction,
        "coxswain_makespan_over_bound": 1.25, "coxswain_world_generation": 1, "coxswain_step_seconds_count": 2,
        "coxswain_step_seconds_sum": first.seconds + last.seconds, "coxswain_evaluation_seconds_count": 0,
    }  # fmt: skip
    counted = {f'coxswain_tokens_total{{source="{name}"}}': 2 * n for name, n in last.tokens_by_source.items()}
    assert {name: float(found[name]) for name in wanted | counted} == wanted | counted
    assert first.idle_fraction != last.idle_fraction and len(counted) == 2
    off = [1 - line.planned_seconds / line.seconds for line in (first, last)]
    assert float(found["coxswain_cost_model_error"]) == pytest.approx(sum(off) / 2)
    assert off[0] > 1.5 * off[1] > 0
    run.save(2)
    assert "coxswain_checkpoint_seconds_sum 0.5\n" in run.metrics.exposition().decode()


def test_the_cost_models_error_is_that_of_the_latest_twenty_steps(run):
    run.step(0)
    (line,), history = run.state.history.recent, run.state.history
    timing = TimingLine(0, 1, 1, 4.0, 4.0, (), ())
    for step in range(1, 41):
        history.add(replace(line, step=step, seconds=4.0, planned_seconds=3.0 if step <= 20 else 2.0), timing, ())
    assert "coxswain_cost_model_error 0.5\n" in run.metrics.exposition().decode()


def test_a_checkpoint_behind_a_clock_that_was_set_back_is_an_event(run):
    """None would be until the clock has caught up."""
    for step in (3, 6):
        run.save(step)
        run.now -= 3600.0
    saved = [e.message for e in run.state.events.latest() if e.reason == "CheckpointSaved"]
    assert [message.partition(",")[0][-7:] for message in saved] == ["03.json", "06.json"]


def test_a_predicted_step_is_its_makespan_reduction_and_update_in_its_line_and_the_metrics(run):
    """Two trainers send half of the gradients and of the weights, of 4 bytes each; 1 GB/s."""
    run.state.hardware = MEASURED
    run.enter(session(run.state.job))
    run.session.add(committed(0, makespan_seconds=1.5))
    run.step(0)
    model, vocabulary = run.state.job.model, run.session.world.vocabulary
    parameters = sum(prod(spec.shape) for spec in parameter_specs(model, vocabulary))
    (line,) = run.state.history.recent
    assert line.planned_seconds == pytest.approx(1.5 + parameters * (4 / 1e9 + 3e-9))
    text = run.metrics.exposition().decode()
    assert f"coxswain_planned_step_seconds {line.planned_seconds}\n" in text
    assert f"coxswain_cost_model_error {1 - line.planned_seconds / line.seconds}\n" in text


def test_a_model_of_the_users_own_has_no_known_parameters_and_only_its_makespan_is_predicted(run):
    own = replace(run.state.job.model, custom=CustomModel(path="a:B"))
    assert seconds_beside_tasks(own, run.session.world, MEASURED) == 0.0
    assert seconds_beside_tasks(run.state.job.model, run.session.world, MEASURED) > 0.0


@pytest.mark.parametrize(("sums", "loss"), [((6.0, 4.0), 2.5), ((6.0, None), None), ((None, None), None)])
def test_the_line_of_a_step_has_the_loss_of_all_ranks_over_the_labels_of_its_evaluation(tmp_path, sums, loss):
    book = StepTracker(session(make_job(tmp_path)).world.seats, 0, STREAM_SEED)
    for rank, part in enumerate(sums):
        book.add_report(report(rank, 0, evaluation_loss_sum=part, evaluation_seconds=0.5 + rank))
    book.add_delivered(DeliveredDigests(1, 0, ((0, "11" * 32), (1, "22" * 32))))
    held_out = Evaluation((Sequence("code", -1, 9, 0, 5, 9),), (), (), 4, 0)
    line, *_ = book.close(replace(plan(0), evaluation=held_out), 5000.0)
    assert (line.evaluation_loss, line.evaluation_tokens, line.evaluation_seconds) == (loss, 5, 1.5)
    assert (line.tokens, line.sequences, line.tokens_by_source) == (11, 2, {"code": 6, "docs": 5})


def test_a_step_without_a_label_closes_with_a_loss_of_zero(tmp_path):
    book = StepTracker(session(make_job(tmp_path)).world.seats, 0, STREAM_SEED)
    for rank in (0, 1):
        book.add_report(report(rank, 0, loss_sum=0.0))
    book.add_delivered(DeliveredDigests(1, 0, ((0, "11" * 32), (1, "22" * 32))))
    found = book.close(replace(plan(0), labels=0), 5000.0)
    assert found is not None and found.line.loss == 0.0


def test_the_latest_evaluation_stays_in_report_metrics_and_page(run):
    run.step(0)
    assert (run.report().evaluation_loss, run.report().evaluation_step) == (None, -1)
    assert "coxswain_evaluation_loss{" not in run.metrics.exposition().decode()
    held_out = Evaluation((Sequence("code", -1, 9, 0, 5, 9),), (), (), 4, 0)
    run.session.add(committed(1, evaluation=held_out))
    run.step(1, evaluation_loss_sum=5.0, evaluation_seconds=0.75)
    run.step(2)
    found = run.report()
    assert "coxswain_evaluation_seconds_sum 0.75\n" in run.metrics.exposition().decode()
    assert (found.evaluation_loss, found.evaluation_step) == (2.5, 1)
    assert 'coxswain_evaluation_loss{tokens="5"} 2.5' in run.metrics.exposition().decode()
    assert "<td>Loss on held-out documents<td>2.5000 after step 1</tr>" in page("demo", found)


def test_without_a_known_peak_no_utilisation_is_shown(run):
    run.step(0)
    assert (run.state.history.recent[0].mfu, run.report().mfu) == (None, None)
    assert "coxswain_model_flops_utilization{" not in run.metrics.exposition().decode()
    assert "utilisation" not in page("demo", run.report())


def test_a_rank_that_does_not_finish_is_named_with_its_trainer_and_node(run):
    run.session.begin(0)
    run.session.book.add_report(report(0))
    assert run.report().waiting_for == "rank 1 of 2 to finish step 0: trainer-1 (node-b)"


def test_the_first_step_of_a_world_is_waited_for_in_words_while_all_ranks_compute_it(run):
    run.session.begin(0)
    assert run.report().phase == "Starting"
    assert run.report().waiting_for == "all 2 ranks to finish step 0, the first of this world"


def test_a_later_step_that_all_ranks_compute_is_waited_for_without_words(run):
    run.step(0)
    run.session.begin(1)
    assert (run.report().phase, run.report().waiting_for) == ("Running", "")


# --- lines of the log ------------------------------------------------------------------------------------------------


def said(caplog, word: str = "step") -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith(word)]


def test_a_step_is_a_line_that_names_the_trainer_that_took_longest(run, caplog):
    run.step(0)
    assert said(caplog) == [
        "step 0: loss 2.1000, 3 tokens/s, 4 s, idle 50.0%, slowest trainer-1 (node-b): 3 s compute, 0.2 s data"
    ]


def test_steps_within_a_second_share_a_line_that_names_their_range(run, caplog):
    for number in range(6):
        run.step(number, 0.4, compute=(2.0, 1.0) if number < 4 else (1.0, 2.0))
    assert [line.partition(":")[0] for line in said(caplog)] == ["step 0", "steps 1-3"]
    run.state.finish(Finished(0, "StopReached", "completed 6 steps"))
    assert said(caplog)[1:] == [
        "steps 1-3: loss 2.1000, 3 tokens/s, 4 s each, idle 62.5%, slowest trainer-0 (node-a): 2 s compute, 0.2 s data",
        "steps 4-5: loss 2.1000, 3 tokens/s, 4 s each, idle 62.5%, slowest trainer-1 (node-b): 2 s compute, 0.2 s data",
    ]


def test_a_burst_of_a_thousand_steps_is_two_lines_and_a_line_is_at_most_two_hundred_bytes(tmp_path, caplog):
    caplog.set_level(logging.INFO, "coxswain_coordinator")
    now = [0.0]
    log, line = StepLog(lambda: now[0]), closed(tmp_path, [1.0])[0].line
    assert not log.due()
    for number in range(1_000_000, 1_001_000):
        log.add(
            replace(line, step=number, tokens=10**6, loss=number / 1e6),
            {(0, 0): RankStep(4.0, 1.0, 0.0, 1.0), (1, 1): RankStep(*[9.99] * 4)},
        )
        if log.due():
            log.write(f"trainer-999 ({'n' * 40})".format)
    now[0] = 1.0
    assert log.due()
    log.write("trainer-{}".format)
    assert not log.due()
    assert [text.partition(",")[0] for text in said(caplog)] == [
        "step 1000000: loss 1.0000",
        "steps 1000001-1000999: loss 1.0010",
    ]
    assert max(len(text) for text in said(caplog)) < 200


@pytest.mark.parametrize(("seconds", "text"), [(0.000009, "0"), (0.0004, "0.0004"), (1.2345, "1.23"), (123.4, "123")])
def test_a_tiny_wait_is_none(seconds, text):
    assert short(seconds) == text


def test_a_trainers_slowest_rank_is_the_one_that_its_step_waits_for():
    step = {(0, 0): RankStep(9, 1.0, 0.5, 0), (0, 1): RankStep(9, 0.5, 1.5, 0), (1, 2): RankStep(9, 1.0, 0.0, 0)}
    assert slowest_ranks(step) == {0: (0.5, 1.5), 1: (1.0, 0.0)}


def test_every_checkpoint_is_logged_and_once_a_minute_an_event(run, caplog):
    for number, seconds in enumerate((0, 10, 10, 40, 60)):
        run.now += seconds
        run.save(6 * (number + 1))
    assert len(said(caplog, "CheckpointSaved")) == 5
    assert "CheckpointSaved: manifests/step-0000000012.json, 0 shards, 0.5 s" in said(caplog, "CheckpointSaved")
    assert [e.message for e in run.state.events.latest() if e.reason == "CheckpointSaved"] == [
        "manifests/step-0000000006.json, 0 shards, 0.5 s",
        "manifests/step-0000000024.json, 0 shards, 0.5 s; 3 checkpoints since the event before",
        "manifests/step-0000000030.json, 0 shards, 0.5 s",
    ]


def test_events_generations_and_losses_of_a_world_are_logged(run, caplog):
    run.step(0)
    run.state.mark_world_lost("rank 1 on trainer-1 ended: exit code -9")
    run.enter(session(run.state.job))
    run.state.fail(Fault("SourceEmpty", "no documents"))
    run.state.finish(Finished(2, "SourceEmpty", "no documents"))
    found = [(r.levelname, r.getMessage()) for r in caplog.records]
    assert ("INFO", "TrainingStarted: step 0 is done, loss 2.1000") in found
    assert ("WARNING", "generation 1 is lost: rank 1 on trainer-1 ended: exit code -9") in found
    assert [level for level, text in found if text.startswith("WorkerRestarted: rank 1 on trainer-1")] == ["WARNING"]
    assert found[-1] == ("WARNING", "Failed: SourceEmpty: no documents")


def test_a_line_of_one_trainer_names_none_and_steps_that_took_no_time_have_no_rate(tmp_path):
    line = replace(closed(tmp_path, [1.0])[0][0], seconds=0.0)
    assert describe([line], {0: [1.0, 0.0]}, "trainer-{}".format) == "step 0: loss 2.1000, 0 tokens/s, 0 s, idle 0.0%"
