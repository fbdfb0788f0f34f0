"""The profile of a machine, on machines of known rates and in virtual time: nothing is computed."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from coxswain.config import ModelConfig
from coxswain.cost.constants import load_hardware
from coxswain.cost.error import error_of
from coxswain.cost.fit import Measured, Step, fitted, predicted
from coxswain.cost.hardware import Rates, scaled, step_seconds
from coxswain.cost.memory import Recompute
from coxswain.cost.model import CostModel
from coxswain.errors import Refused
from coxswain_train.profile import __main__ as profiler
from coxswain_train.profile.__main__ import Subject, base_of, fitted_hardware, options_of, said, subject_of
from coxswain_train.profile.machine import tasks_of
from coxswain_train.profile.measure import measure

ROOT = Path(__file__).parents[2]
MODEL = ModelConfig(layers=4, hidden=128, heads=4, kv_heads=2, feed_forward=384, vocabulary=4096)
PARAMETERS = 1_835_008
RATES = Rates(
    linear_tflops=0.06, attention_tflops=0.05, kv_element_bytes=4, inside_node_gbps=0.8, between_nodes_gbps=0.8, task_ms=7,
    update_ns_per_parameter=9, attention_table=((64, 0.01), (1024, 0.04), (4096, 0.05)), ring_table=((64, 0.008), (4096, 0.05)),
)  # fmt: skip
BASE = load_hardware("cpu").rates


@dataclass
class Virtual:
    """A machine that takes what its rates say, times noise; counts the seconds that pass."""

    rates: Rates = RATES
    ranks: int = 4
    noise: float = 0.0
    recompute: Recompute = "None"  # of its steps
    passed: float = 0.0
    called: list[str] = field(default_factory=list)
    draw: Random = field(default_factory=lambda: Random(5))

    @property
    def degree(self) -> int:
        return self.ranks if self.ranks > 1 else 4

    @property
    def cost(self) -> CostModel:
        return CostModel(scaled(self.rates, MODEL))

    def attention(self, tokens: int, calls: int) -> float:
        seconds = float(self.cost.work_seconds([tokens])[0]) - self.cost.linear * tokens
        return self._took("attention", seconds / MODEL.layers, calls)

    def ring(self, tokens: int, calls: int) -> float:
        alone = replace(self.rates, inside_node_gbps=1e9, task_ms=0.0)
        cost = CostModel(scaled(alone, MODEL))
        whole = float(cost.ring_seconds(float(tokens * self.degree), float(self.degree), True))
        return self._took("ring", (whole - cost.linear * tokens) / MODEL.layers, calls)

    def exchange(self, size: int, calls: int) -> float:
        return self._took("exchange", size / (self.rates.inside_node_gbps * 1e9), calls)

    def step(self, step: Step) -> float:
        return self._took("step", predicted(step, self.rates, self.measured, True), 1)

    @property
    def measured(self) -> Measured:
        return Measured(MODEL, PARAMETERS, self.ranks, (), (), 0.0, (), self.recompute)

    def _took(self, what: str, seconds: float, calls: int) -> float:
        self.called.append(what)
        taken = seconds * (1 + self.noise * self.draw.uniform(-1, 1))
        self.passed += taken * calls
        return taken


def profiled(machine: Virtual, seconds: float = 60.0) -> tuple[Rates, Measured, tuple[Step, ...]]:
    measured, held_out = measure(machine, MODEL, PARAMETERS, 4096, seconds, recompute=machine.recompute)
    return fitted(measured, BASE, None), measured, held_out


@pytest.mark.parametrize("recompute", ["None", "Selective", "Full"])
def test_a_profile_finds_the_rates_of_a_machine_that_the_model_describes(recompute: Recompute) -> None:
    """What its steps compute again is no part of the rates: the plan of a job counts it by the job's own policy."""
    found, measured, held_out = profiled(Virtual(recompute=recompute))
    for name in ("linear_tflops", "task_ms", "update_ns_per_parameter", "inside_node_gbps", "between_nodes_gbps"):
        assert getattr(found, name) == pytest.approx(getattr(RATES, name), rel=1e-3), name
    assert dict(found.attention_table)[1024] == pytest.approx(0.04) == found.attention_table[4][1]
    assert found.ring_table[-1] == pytest.approx((4096, 0.05))
    assert error_of((predicted(s, found, measured, True), s.seconds) for s in held_out).p95 < 1e-3


def test_held_out_steps_are_none_of_those_that_were_fitted_and_have_rings() -> None:
    _, measured, held_out = profiled(Virtual())
    assert not {(s.packs, s.ring) for s in measured.steps} & {(s.packs, s.ring) for s in held_out}
    assert any(s.ring for s in held_out) and not any(s.ring for s in measured.steps)


def test_steps_fill_their_replicas_and_no_pack_is_more_than_one_holds() -> None:
    _, measured, held_out = profiled(Virtual())
    packs = [sum(pack) for step in (*measured.steps, *held_out) for pack in step.packs]
    assert min(packs) > 0 and max(packs) == 4096
    assert sorted(step.ring for step in held_out if step.ring) == [int(0.6 * 4 * 4096), 4 * 4096]


def test_a_bandwidth_is_that_of_a_layers_keys_and_values() -> None:
    class Sized(Virtual):
        def exchange(self, size: int, calls: int) -> float:
            sizes.add(size)
            return super().exchange(size, calls)

    sizes = set[int]()
    profiled(Sized())
    assert sizes == {2 * 2 * 32 * 4 * 4096}  # of two key heads of 32 elements of 4 bytes


@pytest.mark.parametrize("tokens", [1, 64, 256, 1024])
def test_a_job_of_few_tokens_a_task_has_the_bandwidth_that_its_gradients_have(tokens: int) -> None:
    """Messages of 0.5 KiB to 0.5 MiB would say that of a link which takes a millisecond to begin: 0.0005 to 0.4 of 0.8 GB/s."""

    class Late(Virtual):
        def exchange(self, size: int, calls: int) -> float:
            return super().exchange(size, calls) + 1e-3

    measured, _ = measure(Late(), MODEL, PARAMETERS, tokens, 60.0)
    assert measured.gbps == pytest.approx(0.8, rel=0.3)


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 64])
def test_tasks_of_few_tokens_have_sequences_all_the_same(tokens: int) -> None:
    """A pack without a sequence, or a sequence without a token, is none of a job's, and kernels divide by their number."""
    found, held_out = measure(Virtual(), MODEL, PARAMETERS, tokens, 20.0)
    packs = [pack for step in (*found.steps, *held_out) for pack in step.packs]
    assert packs and all(pack and min(pack) >= 1 for pack in packs)


def test_with_a_tenth_of_noise_predictions_are_off_by_less_than_that() -> None:
    found, measured, held_out = profiled(Virtual(noise=0.1))
    assert 0.0 < error_of((predicted(s, found, measured, True), s.seconds) for s in held_out).p50 < 0.1


def test_a_machine_unlike_the_model_has_an_error_that_is_said() -> None:
    """Its steps take twice what the rates say whenever there is a ring."""

    class Odd(Virtual):
        def step(self, step: Step) -> float:
            return super().step(step) * (2 if step.ring else 1)

    found, measured, held_out = profiled(Odd())
    error = error_of((predicted(s, found, measured, True), s.seconds) for s in held_out)
    assert error.p95 > 0.4 and said(error).endswith(f"{error.p95:.1%} (p95)")


@pytest.mark.parametrize("seconds", [60.0, 5.0])
def test_a_profile_ends_near_its_seconds_on_slow_machines_too(seconds: float) -> None:
    for slower in (1.0, 0.1):
        rates = {name: getattr(RATES, name) * slower for name in ("linear_tflops", "attention_tflops")}
        machine = Virtual(replace(RATES, **rates))
        profiled(machine, seconds)
        # Each shape of a step runs at least once.
        shapes = sum(machine.step(s) for s in [*profiled(Virtual())[1].steps, *profiled(Virtual())[2]])
        assert machine.passed < seconds + 2 * shapes + 6


@pytest.mark.parametrize(("seconds", "attention", "rings"), [(2.0, 1, 2), (10.0, 5, 5), (60.0, 7, 7)])
def test_tokens_double_while_their_part_of_the_seconds_is_enough(seconds: float, attention: int, rings: int) -> None:
    """All calls of a timing count, not those of one; what a point is for a model of four layers, a call is a quarter of."""
    machine = Virtual()
    _, measured, _ = profiled(machine, seconds)
    assert (len(measured.attention), len(measured.rings)) == (attention, rings)
    assert machine.passed < 50  # the last round of steps ends with the seconds


def test_the_first_call_of_each_size_counts_for_nothing() -> None:
    """It loads kernels and opens connections."""

    class Cold(Virtual):
        def _took(self, what: str, seconds: float, calls: int) -> float:
            first = (what, seconds) not in self.warm and what != "step"
            self.warm.add((what, seconds))
            return super()._took(what, seconds * (10 if first else 1), calls)

    cold, warm = Cold(), profiled(Virtual())[1]
    cold.warm = set[tuple[str, float]]()  # type: ignore[attr-defined]
    _, measured, _ = profiled(cold)
    assert (measured.attention, measured.rings, measured.gbps) == (warm.attention, warm.rings, warm.gbps)


def test_a_device_alone_measures_rings_and_keeps_the_bandwidths_of_its_base() -> None:
    machine = Virtual(ranks=1)
    found, _, held_out = profiled(machine)
    assert "ring" in machine.called and "exchange" not in machine.called and not any(s.ring for s in held_out)
    assert (found.inside_node_gbps, found.between_nodes_gbps) == (BASE.inside_node_gbps, BASE.between_nodes_gbps)


def test_a_file_is_of_the_whole_model_where_fewer_layers_were_measured() -> None:
    rates, measured, held_out = profiled(Virtual())
    base = replace(load_hardware("cpu"), models={"other": RATES})
    subject = Subject(replace(MODEL, layers=12), 4096, "Full")
    found, error = fitted_hardware(measured, held_out, base, subject, "cpu", None)
    assert found.rates == replace(rates, task_ms=3 * rates.task_ms)
    assert (found.models, error.count) == ({}, len(held_out))
    assert found.note.startswith(
        "Measured on cpu by python -m coxswain_train.profile: a model of 12 layers, hidden 128, 4 "
    )
    assert "tasks of at most 4096 tokens, recompute Full. Predicted" in found.note


@pytest.mark.parametrize(("across", "inside", "between"), [(None, 8.0, 8.0), (True, 1.0, 8.0), (False, 8.0, 1.0)])
def test_a_measured_bandwidth_is_that_of_the_links_it_went_over(
    across: bool | None, inside: float, between: float
) -> None:
    measured = replace_measured(Virtual(), gbps=8.0)
    found = fitted(measured, replace(BASE, inside_node_gbps=1.0, between_nodes_gbps=1.0), across)
    assert (found.inside_node_gbps, found.between_nodes_gbps) == (inside, between)


def replace_measured(machine: Virtual, gbps: float) -> Measured:
    step = Step(packs=((100,),), seconds=0.1)
    return Measured(MODEL, PARAMETERS, machine.ranks, (), (), gbps, (step,))


def test_a_time_that_falls_with_tokens_is_noise_and_not_in_the_table() -> None:
    measured = Measured(MODEL, PARAMETERS, 2, ((64, 2e-3), (128, 1e-3), (256, 5e-3)), (), 0.0, (Step(((9,),), 0, 1.0),))
    assert [tokens for tokens, _ in fitted(measured, BASE, None).attention_table] == [64, 256]


def test_a_fitted_file_is_read_as_hardware(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_bytes(msgspec.json.encode(replace(load_hardware("cpu"), rates=profiled(Virtual(noise=0.05))[0])))
    assert load_hardware(str(file)).rates.ring_table


def test_no_cost_is_below_zero_where_noise_asks_for_it() -> None:
    steps = (Step(((100,),), 0, 0.30), Step(((200,),), 0, 0.20), Step(((100,), (100,)), 0, 0.1))
    found = fitted(Measured(MODEL, PARAMETERS, 1, (), (), 0.0, steps), BASE, None)
    assert min(found.linear_tflops, found.task_ms, found.update_ns_per_parameter) >= 0


def test_an_error_counts_by_its_share_of_a_steps_seconds() -> None:
    """Of steps that took 1 s and 3 s the one between is 1.2 s, by seconds it would be 2 s: no long step hides short ones."""
    measured = Measured(MODEL, PARAMETERS, 1, (), (), 0.0, tuple(Step(((100,),), 0, taken) for taken in (1.0, 3.0)))
    assert predicted(measured.steps[0], fitted(measured, BASE, None), measured, True) == pytest.approx(1.2, rel=0.05)


def test_what_a_step_takes_besides_its_tasks_is_split_into_sending_and_update() -> None:
    found, _, _ = profiled(Virtual())
    assert step_seconds(found, PARAMETERS, 4, True) == pytest.approx(step_seconds(RATES, PARAMETERS, 4, True), rel=1e-3)


def test_every_replica_has_a_steps_packs_and_a_part_of_its_ring() -> None:
    tasks = list(tasks_of(Step(packs=((3, 2), (4,)), ring=13), 3))
    assert [t.replicas for t in tasks] == [(0,), (0,), (1,), (1,), (2,), (2,), (0, 1, 2)]
    assert [t.index for t in tasks] == list(range(7))
    assert sum(s.stop - s.start for s in tasks[-1].slices) == 13
    assert len({s.sequence for t in tasks for s in t.slices}) == 10


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--model: give a preset"),
        (["--model", "gpt-9"], "use one of llama-tiny"),
        (["--model", "llama-tiny"], "--vocabulary: the tokenizer"),
    ],
)
def test_a_profile_of_no_known_model_is_refused(arguments: list[str], says: str) -> None:
    with pytest.raises(Refused, match=says):
        subject_of(options_of(arguments))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--base", "h900"], "hardware 'h900'"),
        (["--device", "cuda"], "--device cuda: this machine has no CUDA device; use --device cpu"),
        (["--output", "no/such/folder/mine.json"], "--output 'no/such/folder/mine.json': give a file in a folder"),
        (["--output", "."], "--output '.': give a file"),
        (["--processes", "0"], "--processes: '0': allowed is a whole number of at least 1"),
        (["--layers", "-1"], "--layers: '-1': allowed is a whole number of at least 0"),
        (["--seconds", "nan"], "--seconds: 'nan': allowed is a number above 0"),
    ],
)
def test_what_a_profile_refuses_it_refuses_before_it_measures(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profiler, "profile", lambda *_: pytest.fail("it measures"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    try:
        code = profiler.main(["--model", "llama-tiny", "--vocabulary", "320", *arguments])
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and says in capsys.readouterr().err


def job_of(folder: Path, tokenizer: str) -> Path:
    """The job of the README with another tokenizer."""
    text = (ROOT / "examples" / "quickstart.yaml").read_text()
    file = folder / "job.yaml"
    file.write_text(text.replace("tokenizer: {bytes: {}}", f"tokenizer: {tokenizer}"))
    return file


@pytest.mark.parametrize(("tokenizer", "rows"), [("{bytes: {}}", 320), ('{file: {uri: "file:tokenizer.json"}}', 128)])
def test_a_job_whose_tokenizer_decides_its_vocabulary_is_profiled_with_the_rows_that_it_trains(
    tmp_path: Path, tokenizer: str, rows: int
) -> None:
    """As the page says it: --job and --output are enough."""
    content = {"model": {"vocab": {str(i): i for i in range(100)}}, "added_tokens": [{"content": "</s>", "id": 100}]}
    (tmp_path / "tokenizer.json").write_bytes(msgspec.json.encode(content))
    subject = subject_of(options_of(["--job", str(job_of(tmp_path, tokenizer))]))
    assert (subject.model.vocabulary, subject.tokens) == (rows, 1024)


def test_a_job_whose_tokenizer_cannot_be_read_is_refused_with_the_option_that_stands_in_for_it(tmp_path: Path) -> None:
    arguments = ["--job", str(job_of(tmp_path, '{file: {uri: "file:none.json"}}'))]
    with pytest.raises(Refused, match=r"^--vocabulary: the tokenizer .*none\.json.* give its number of ids$"):
        subject_of(options_of(arguments))
    assert subject_of(options_of([*arguments, "--vocabulary", "300"])).tokens == 1024


@pytest.mark.parametrize("arguments", [["--output", "/proc/mine.json"], ["--output", "/dev/full"]])
def test_a_profile_that_cannot_be_written_ends_with_code_2_and_no_traceback(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(options: argparse.Namespace, *_: object) -> int:
        profiler.write(options.output, load_hardware("cpu"))
        return 0

    monkeypatch.setattr(profiler, "profile", measured)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert profiler.main(["--model", "llama-tiny", "--vocabulary", "320", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"--output {arguments[1]!r}") and "give a file that can be" in said


@pytest.mark.parametrize(("rank", "says"), [("0", "model.custom.class 'mine:Model': cannot be imported\n"), ("1", "")])
def test_what_only_the_engine_refuses_is_said_by_one_rank_and_without_a_traceback(
    rank: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> int:
        raise Refused("BadModel", "model.custom.class 'mine:Model': cannot be imported")

    monkeypatch.setattr(profiler, "profile", refuse)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("RANK", rank)
    assert profiler.main(["--model", "llama-tiny", "--vocabulary", "320"]) == 2
    assert capsys.readouterr().err == says


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layers": 0}, "layers is 0; it must be at least 1"),
        ({"heads": 0}, "heads is 0; it must be at least 1"),
        ({"kv_heads": 3}, "heads is 4; it must be a multiple of kv_heads 3"),
        ({"hidden": 132}, "hidden is 132; it must be an even multiple of heads 4, or give head_size"),
        ({"head_size": 7}, "head_size is 7; it must be even"),
        ({"vocabulary": -1}, "vocabulary is -1; it must be at least 0"),
    ],
)
def test_a_shape_in_a_file_that_no_model_has_is_refused(tmp_path: Path, change: dict[str, int], says: str) -> None:
    file = tmp_path / "shape.json"
    file.write_bytes(msgspec.json.encode(replace(MODEL, **change)))
    with pytest.raises(Refused, match=says):
        subject_of(options_of(["--model", str(file)]))


def test_a_shape_in_a_file_is_profiled_as_a_preset_is(tmp_path: Path) -> None:
    file = tmp_path / "shape.json"
    file.write_bytes(msgspec.json.encode(MODEL))
    subject = subject_of(options_of(["--model", str(file), "--tokens", "512", "--recompute", "Full"]))
    assert (subject.model, subject.tokens, subject.recompute) == (MODEL, 512, "Full")


def test_a_job_is_profiled_with_the_tokens_of_its_tasks_and_the_positions_of_its_longest_sequence() -> None:
    job = str(Path(__file__).parents[2] / "examples" / "gpt2.yaml")
    subject = subject_of(options_of(["--job", job, "--vocabulary", "320"]))
    assert (subject.tokens, subject.longest) == (1024, 2048)
    assert subject_of(options_of(["--model", "llama-tiny", "--vocabulary", "320"])).longest == 0


@pytest.mark.parametrize(
    ("name", "hardware"),
    [("NVIDIA H100 80GB HBM3", "h100-80g"), ("NVIDIA H200", "h200-141g"), ("NVIDIA A100-SXM4-40GB", "a100-40g"),
     ("NVIDIA A100-SXM4-80GB", "a100-80g"), ("NVIDIA A100-PCIE-40GB", "a100-40g"), ("NVIDIA A100 80GB PCIe", "a100-80g"),
     ("cpu", "cpu")],
)  # fmt: skip
def test_what_is_not_measured_comes_from_the_shipped_file_of_the_device(name: str, hardware: str) -> None:
    assert base_of(name) == hardware


@pytest.mark.parametrize("name", ["NVIDIA Thing 9", "NVIDIA GH200 480GB"])
def test_an_unknown_device_needs_a_base(name: str) -> None:
    with pytest.raises(Refused, match="--base"):
        base_of(name)


LINKS = replace(RATES, inside_node_gbps=0.8, between_nodes_gbps=0.1, attention_table=(), ring_table=())
NOTHING = Measured(MODEL, PARAMETERS, 4, (), (), 0.1, ())


@pytest.mark.parametrize("across", [True, False])
def test_what_a_step_sends_goes_over_the_links_that_were_measured(across: bool) -> None:
    packs = (((100,),), ((200, 100), (50,)), ((400,), (400,), (30,)), ((4000,),), ((90, 80, 70), (1000,)))
    steps = tuple(Step(each, 0, predicted(Step(each), LINKS, NOTHING, not across)) for each in packs)
    found = fitted(dataclasses.replace(NOTHING, steps=steps, gbps=0.1 if across else 0.8), LINKS, across)
    for name in ("update_ns_per_parameter", "linear_tflops", "task_ms", "inside_node_gbps", "between_nodes_gbps"):
        assert getattr(found, name) == pytest.approx(getattr(LINKS, name), rel=1e-6), name


def test_a_ring_and_a_step_are_predicted_over_the_links_between_their_members() -> None:
    """Keys travel as well as gradients: a step of a ring loses more by a slow link than one of packs."""
    lost = [
        predicted(s, LINKS, NOTHING, False) - predicted(s, LINKS, NOTHING, True)
        for s in (Step(((64,),)), Step(ring=64))
    ]
    sent = [step_seconds(LINKS, PARAMETERS, 4, inside) for inside in (False, True)]
    assert lost[0] == pytest.approx(sent[0] - sent[1]) and lost[1] > lost[0] * 1.0001


def test_a_ring_is_a_task_of_its_step_and_none_of_its_packs() -> None:
    assert [(s.tasks, s.tokens) for s in (Step(((3, 2), (4,)), ring=13), Step(((3, 2), (4,))), Step(ring=13))] == [
        (3, 9),
        (2, 9),
        (1, 0),
    ]


def test_no_time_and_the_same_time_for_more_tokens_are_noise_and_the_rate_at_any_length_is_that_of_the_longest() -> (
    None
):
    points = ((64, 0.0), (128, 1e-3), (256, 1e-3), (512, 5e-3))
    found = fitted(dataclasses.replace(NOTHING, attention=points, steps=(Step(((9,),), 0, 1.0),)), BASE, None)
    assert [tokens for tokens, _ in found.attention_table] == [128, 512]
    assert found.attention_tflops == found.attention_table[-1][1] != found.attention_table[0][1]
