"""What the report draws: numbers for people, curves, bars and the choice of steps."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from coxswain.config import PhaseConfig
from coxswain.membership.mix_record import record_of
from coxswain.membership.values import MixRecord
from coxswain_cli.reporting import bars, charts, curves, formatting, looks, mix, timeline
from coxswain_cli.reporting import page as pages
from coxswain_cli.reporting.charts import Chart, Series
from coxswain_cli.reporting.markup import Markup, join, percent, tag
from coxswain_cli.reporting.model import (
    MeasuredPass,
    MixInForce,
    PlannedTask,
    RankTiming,
    RecordedRun,
    RecordedStep,
    StepTiming,
)
from coxswain_cli.reporting.step_selection import chosen_steps
from tests.unit import report_samples as samples

numbers = st.floats(-1e9, 1e9, allow_nan=False)


@given(numbers, numbers)
@example(0.0, 5e-324)
@example(3.0, 3.0)
@example(1e-13, 2e-13)
def test_axis_ticks_cover_all_values_and_stay_few(a: float, b: float) -> None:
    low, high = sorted((a, b))
    ticks = formatting.ticks(low, high)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(set(ticks)) <= 7


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_step_axes_have_whole_round_labels_within_range(first: int, length: int) -> None:
    labels = formatting.whole_ticks(first, first + length)
    assert all(first <= label <= first + length for label in labels)
    assert len(labels) <= 7


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.01234, "0.0123"), (999.9, "1k"), (12345, "12.3k"), (2.5e6, "2.5M"), (-4000, "-4k")]
)
def test_short_numbers_have_three_digits_and_a_unit(value: float, text: str) -> None:
    assert formatting.short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "12.3 ms"), (0.9999, "1 s"), (12.34, "12.3 s"), (125, "2 min 05 s"), (11400, "3 h 10 min")],
)
def test_durations_read_like_speech(value: float, text: str) -> None:
    assert formatting.seconds(value) == text


@given(st.lists(st.one_of(st.none(), st.floats(-10, 10)), max_size=60), st.integers(1, 8))
def test_smoothing_keeps_gaps_ends_and_bounds(values: list[float | None], reach: int) -> None:
    smooth = formatting.smooth(values, reach)
    assert [v is None for v in smooth] == [v is None for v in values]
    known = [v for v in values if v is not None]
    assert all(min(known) - 1e-9 <= v <= max(known) + 1e-9 for v in smooth if v is not None)


def test_thinning_keeps_the_mean_and_the_order() -> None:
    values = [float(i) for i in range(6000)]
    thin = formatting.thin(values, 600)
    assert len(thin) == 600
    assert thin == sorted(v for v in thin if v is not None)
    assert sum(v for v in thin if v is not None) / 600 == pytest.approx(sum(values) / 6000)


def test_plain_strings_are_escaped_in_text_and_in_attributes() -> None:
    made = tag("p", "<script>", join(["a&b", Markup("<i></i>")]), title='"><script>')
    assert made == '<p title="&quot;&gt;&lt;script&gt;">&lt;script&gt;a&amp;b<i></i></p>'


def chart(values: tuple[float | None, ...]) -> Chart:
    return Chart("Loss", "nats", tuple(range(len(values))), (Series("loss", 0, values),))


def points(markup: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'points="([^"]*)"', markup)
    return [[tuple(map(float, p.split(","))) for p in line.split()] for line in found]  # type: ignore[misc]


def test_a_curve_goes_from_edge_to_edge_and_higher_values_lie_higher() -> None:
    (line,) = points(charts.draw(chart((4.0, 3.0, 2.0))))
    assert [x for x, _ in line] == [0, 500, 1000]
    assert line[0][1] < line[1][1] < line[2][1]


def test_a_gap_in_the_values_is_a_gap_in_the_curve() -> None:
    assert [len(line) for line in points(charts.draw(chart((1.0, 2.0, None, 3.0, 4.0))))] == [2, 2]


@pytest.mark.parametrize("values", [(1.0,), (0.0, 0.0), (None, 5.0)])
def test_curves_of_one_point_or_one_value_are_finite(values: tuple[float | None, ...]) -> None:
    assert all(math.isfinite(v) for line in points(charts.draw(chart(values))) for point in line for v in point)


def test_a_chart_without_values_shows_a_note() -> None:
    assert "no values" in charts.draw(chart((None, None)))


def timing() -> StepTiming:
    planned = (
        PlannedTask(0, "ring", (0, 1), 0.0, 1.0, (5,), 4096),
        PlannedTask(1, "pack", (2,), 0.0, 0.5, (1, 2), 900),
        PlannedTask(2, "ring", (1, 2), 1.0, 2.0, (7,), 4096),
    )
    operations = (MeasuredPass(0, "F", 0.25, 0.5, 0.125), MeasuredPass(0, "B", 0.5, 1.0))
    return StepTiming(3, planned, (RankTiming(0, operations, data_wait=0.25, reduce=0.5), RankTiming(1), RankTiming(2)))


def test_a_ring_lies_on_all_its_replicas_and_a_pack_on_one() -> None:
    rows = bars.planned_rows(timing(), colours())
    assert {r: [b.label for b in row] for r, row in rows.items()} == {0: ["0"], 1: ["0", "2"], 2: ["1", "2"]}


def colours() -> looks.Look:
    return looks.by_sequence(timing().planned)


def test_rings_have_a_colour_each_and_packs_are_grey() -> None:
    assert [colours()(task) for task in (0, 1, 2)] == ["b0", "pack", "b1"]


@pytest.mark.parametrize(("ranks", "shaded"), [(34, False), (35, True)])
def test_too_many_ranks_for_numbers_have_shades_of_degrees_and_a_legend_of_them(ranks: int, shaded: bool) -> None:
    step = samples_timing(ranks)
    assert ('class="d1"' in timeline.draw(step)) == shaded
    legend = pages.page(RecordedRun("j", chosen=((step, "first"),))).partition('class="legend"')[2].partition("</p>")[0]
    assert ("ring of 2" in legend) == shaded
    assert ("a colour a sequence" in legend) != shaded


def test_a_measured_row_shows_data_wait_passes_ring_waits_and_reduction() -> None:
    row = bars.measured_rows(timing(), colours())[0]
    assert [(b.look, b.start, b.stop) for b in row] == [
        ("wait", 0.0, 0.25), ("b0 light", 0.25, 0.5), ("wait", 0.25, 0.375), ("b0", 0.5, 1.0), ("reduce", 1.0, 1.5),
    ]  # fmt: skip


def test_one_of_many_ranks_shows_a_bar_a_task_and_only_waits_that_can_be_seen() -> None:
    waits = (
        MeasuredPass(0, "F", 1.0, 2.0, 0.25),
        MeasuredPass(0, "B", 2.0, 4.0, 0.25),
        MeasuredPass(1, "F", 4.0, 8.0, 0.01),
    )
    step = StepTiming(3, timing().planned, (RankTiming(0, waits, data_wait=0.03, reduce=1.0),))
    (row,) = bars.coarse_rows(step, looks.by_degree(step.planned)).values()
    assert [(b.look, b.start, b.stop) for b in row] == [
        ("d2", 1.0, 4.0), ("wait", 1.0, 1.5), ("d1", 4.0, 8.0), ("reduce", 8.0, 9.0),
    ]  # fmt: skip
    assert row[0].words == "rank 0, task 0: 3 s, waited 500 ms"


@pytest.mark.timeout(60)
def test_a_thousand_ranks_are_drawn_in_less_than_two_megabytes_a_step() -> None:
    made = timeline.draw(samples_timing(1024))
    assert len(made) < 2e6
    assert made.count('class="wait"') > 100


def test_planned_and_measured_share_a_time_axis_unless_one_would_vanish() -> None:
    slow = StepTiming(3, timing().planned, (RankTiming(0, (MeasuredPass(0, "F", 0.0, 40.0),)),))
    assert "time axis of its own" not in timeline.draw(timing())
    assert "time axis of its own" in timeline.draw(slow)


@pytest.mark.parametrize("ranks", [1, 4, 64, 512, 1024])
def test_a_picture_is_sound_markup_and_no_taller_than_a_screen_at_any_number_of_ranks(ranks: int) -> None:
    made = timeline.draw(samples_timing(ranks))
    root = ET.fromstring(f"<div>{made}</div>")
    heights = [float(svg.attrib["height"]) for svg in root.iter("svg")]
    assert len(heights) == 2
    assert all(h <= max(480, ranks) for h in heights)


@pytest.mark.parametrize("moment", [0.0, -5.0])
def test_tasks_that_take_no_time_are_not_drawn(moment: float) -> None:
    """A damaged line; there is no scale to draw them on."""
    planned = (PlannedTask(0, "pack", (0,), moment, moment),)
    made = timeline.draw(StepTiming(3, planned, (RankTiming(0, (MeasuredPass(0, "F", moment, moment),)),)))
    assert made.count("nothing recorded") == 2


def test_a_replica_of_several_ranks_is_one_planned_row_and_each_of_its_ranks_says_its_place() -> None:
    flat = samples_timing(2)
    ranks = [replace(r, rank=2 * r.replica + stage, stage=stage) for r in flat.ranks for stage in (0, 1)]
    deep = replace(flat, ranks=tuple(ranks))
    look = looks.by_sequence(flat.planned)
    assert list(bars.planned_rows(deep, look)) == [0, 1]
    assert list(bars.measured_rows(deep, look)) == [0, 1, 2, 3]
    assert bars.measured_rows(deep, look)[3][0].words.startswith("rank 3 (replica 1, stage 1, tensor 0): waited")
    assert bars.measured_rows(flat, look)[1][0].words.startswith("rank 1: waited")


def samples_timing(ranks: int) -> StepTiming:
    return msgspec.convert(samples.timing_line(1, ranks), StepTiming)


def steps(count: int, **seconds: float) -> list[RecordedStep]:
    return [RecordedStep(step=k, seconds=seconds.get(f"s{k}", 1.0)) for k in range(count)]


def test_the_chosen_steps_are_first_slowest_longest_ring_and_last() -> None:
    rings = dict.fromkeys(range(9), 2) | {4: 3, 5: 3}
    assert chosen_steps(steps(9, s0=9, s6=5), rings) == (
        (0, "first"), (4, "longest ring"), (6, "slowest after the first"), (8, "last"),
    )  # fmt: skip


def test_a_step_with_several_reasons_is_shown_once() -> None:
    assert chosen_steps(steps(1), {0: 1}) == ((0, "first, slowest after the first, longest ring, last"),)


def test_only_steps_with_timings_are_chosen() -> None:
    assert [step for step, _ in chosen_steps(steps(9), {3: 1, 5: 1})] == [3, 5]
    assert chosen_steps(steps(9), {}) == ()


def test_asked_for_steps_replace_the_choice() -> None:
    assert chosen_steps(steps(9), dict.fromkeys(range(9), 2), (3, 7)) == ((3, "asked for"), (7, "asked for"))


def test_a_phase_changes_the_wanted_share_from_its_step_on() -> None:
    config = samples.job().mix
    phase = PhaseConfig(from_step=2, weights={"docs": 1})
    config = type(config)(name="m", seed=1, sources=config.sources, phases=(phase,))
    four = [RecordedStep(step=k, tokens=100, tokens_by_source={"code": 70, "docs": 30}) for k in range(4)]
    code, docs = mix.source_shares(four, (MixInForce(0, record_of(config, 0)),))
    assert code.wanted == pytest.approx((70, 140, 140, 140))
    assert docs.wanted == pytest.approx((30, 60, 160, 260))
    assert docs.tokens == (30, 60, 90, 120)


def test_tokens_of_sources_that_come_and_go_add_up() -> None:
    parts = [{"a": 1, "b": 2}, {"b": 3, "a": 4}, {}, {"c": 5}, {"a": 6, "b": 7}]
    steps = [RecordedStep(step=k, tokens=1, tokens_by_source=part) for k, part in enumerate(parts)]
    found = {share.name: share.tokens for share in mix.source_shares(steps, ())}
    assert found == {"a": (1, 5, 5, 5, 11), "b": (2, 5, 5, 5, 12), "c": (0, 0, 0, 5, 5)}


def test_shares_of_a_long_run_are_kept_where_they_are_drawn_and_end_with_all_tokens() -> None:
    steps = [RecordedStep(step=k, tokens=10, tokens_by_source={"code": 7, "docs": 3}) for k in range(100_000)]
    record = record_of(samples.job().mix, 0)
    shares = mix.source_shares(steps, (MixInForce(0, record),))
    assert [(len(s.tokens), len(s.wanted or ()), s.tokens[-1]) for s in shares] == [
        (600, 600, 700_000), (600, 600, 300_000),
    ]  # fmt: skip
    run = RecordedRun("r", tuple(steps), mixes=(MixInForce(0, record),))
    drawn = mix.over_time(run, shares, mix.drawn([10 * (k + 1) for k in range(100_000)]))
    assert (len(drawn.steps), drawn.steps[-1]) == (600, 99_999)
    assert drawn.series[0].values == pytest.approx((70,) * 600)


def test_of_300_sources_the_largest_have_curves_and_the_others_share_one() -> None:
    """Bars are of all of them; the curves of all would make a page of 11 MB."""
    names = [f"s{n:03d}" for n in range(300)]
    config = type(samples.job().mix)(name="m", seed=1, sources=tuple(samples.source(name, 1) for name in names))
    tokens = {name: 1 + 1000 * (n >= 288) for n, name in enumerate(names)}
    steps = tuple(RecordedStep(step=k, tokens=sum(tokens.values()), tokens_by_source=tokens) for k in range(2000))
    run = RecordedRun("r", steps, mixes=(MixInForce(0, record_of(config, 0)),))
    shares = mix.source_shares(run.steps, run.mixes)
    totals = mix.drawn([sum(tokens.values()) * (k + 1) for k in range(2000)])
    series = mix.over_time(run, shares, totals).series
    solid, dashed = series[::2], series[1::2]
    assert [s.name for s in solid] == [*names[288:], "288 others"]
    assert sum(s.values[-1] or 0 for s in solid) == pytest.approx(100) == sum(s.values[-1] or 0 for s in dashed)
    page = mix.section(run)
    assert len(page) < 1_000_000 and page.count('class="bar"') == 300


def test_thirteen_sources_have_a_curve_each() -> None:
    names = [f"s{n:02d}" for n in range(mix.DRAWN_SOURCES + 1)]
    run = RecordedRun("r", (RecordedStep(step=0, tokens=13, tokens_by_source=dict.fromkeys(names, 1)),))
    assert [s.name for s in mix.over_time(run, mix.source_shares(run.steps, ()), (13,)).series] == names


def test_curves_of_any_number_of_sources_have_a_colour_of_the_page() -> None:
    series = tuple(Series(f"source-{n}", n, (1.0, 2.0)) for n in range(20))
    drawn = set(re.findall(r'class="curve \w+ (s\d+)"', charts.draw(Chart("Sources", "%", (0, 1), series))))
    assert drawn == set(re.findall(r"\.(s\d+)\b", (Path(charts.__file__).parent / "page.css").read_text()))


def test_an_average_is_of_the_drawn_points_however_long_the_run_is() -> None:
    """A mean of a twentieth of all steps for each of them would take hours for a week's run."""
    steps = tuple(RecordedStep(step=k, loss=float(k), seconds=1.0) for k in range(60_000))
    raw, average = next(c for c in curves.charts(RecordedRun("r", steps)) if c.title == "Loss").series
    assert (len(raw.values), len(average.values)) == (60_000, 600)
    assert average.values[300] == pytest.approx(30_050, rel=0.01)


def weights_at(record: MixRecord, step: int, tokens: int, drawn: str = "") -> Mapping[str, int]:
    weights = mix.weights_by_phase(record)
    return weights[mix.phase_at(record, weights, step, tokens, {drawn: 1} if drawn else {})]


def test_a_phase_by_tokens_begins_with_the_step_that_finds_them_trained() -> None:
    config = samples.job().mix
    config = type(config)(
        name="m", seed=1, sources=config.sources, phases=(PhaseConfig(from_tokens=200, weights={"docs": 1}),)
    )
    assert weights_at(record_of(config, 0), 1, 199) == {"code": 700, "docs": 300}
    assert weights_at(record_of(config, 0), 2, 200) == {"code": 0, "docs": 1}


def test_a_phase_that_began_early_shows_by_what_the_step_drew() -> None:
    phases = tuple(PhaseConfig(from_step=step, weights={"docs": step}) for step in (50, 90))
    record = record_of(replace(samples.job().mix, phases=phases), 0)
    assert weights_at(record, 3, 300, "code") == {"code": 700, "docs": 300}
    early = MixRecord(0, {"code": 1, "docs": 0}, {}, phases)
    assert weights_at(early, 3, 300, "docs") == {"code": 0, "docs": 50}
    assert weights_at(early, 90, 300, "docs") == {"code": 0, "docs": 90}


def test_lengths_are_written_as_percentages() -> None:
    assert percent(1 / 3) == "33.333%"
