"""A model of the user's own trains as one of the Llama family does; what is wrong with it is named as the user's fault."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import UNSET
from msgspec.structs import replace
from torch import Tensor
from torch.nn import functional

from coxswain.boxes import full_box
from coxswain.config import CustomModel, ModelConfig, ParameterGroupConfig
from coxswain.errors import Refused
from coxswain.live import LiveSource
from coxswain.planlog import manifest_key
from coxswain_link.store import open_store
from coxswain_train.checkpoint import save_load
from coxswain_train.engine.draws import seed_draws
from coxswain_train.engine.memory import MemoryPolicy, Recompute
from coxswain_train.engine.schedule import learning_rate
from coxswain_train.model.custom import decoder_of, shared_weights
from coxswain_train.model.custom_faults import missing_positions
from coxswain_train.model.init_weights import init_box
from coxswain_train.model.tensor_parallel import ModelPart
from tests.distributed import training
from tests.distributed.plans import random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import ThreadWorld, run_threads
from tests.distributed.worlds import Job, begin, numbered
from tests.layouts import layout_of

EXAMPLES = Path(__file__).parents[2] / "examples"
STREAM = Stream(lengths=(1, 3, 7, 16, 29), vocabulary=training.VOCABULARY)
GPT2 = ModelConfig(
    layers=2, hidden=32, heads=4, kv_heads=4, feed_forward=48,
    custom=CustomModel(path="gpt2:GPT2", arguments={"context": 64}),
)  # fmt: skip
ONE, TWO = (numbered(layout_of(*[[(1, 2)]] * replicas)) for replicas in (1, 2))
STEPS = 4


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def plain(steps: int) -> tuple[dict[str, np.ndarray], list[float]]:
    """A plain torch loop with the user's class, one sequence at a time."""
    model: Any = decoder_of(GPT2, training.VOCABULARY)
    model.double()
    for name, weight in model.named_parameters():
        shape = tuple(weight.shape)
        weight.data = torch.from_numpy(init_box(training.SEED, full_box(name, shape), shape, GPT2)).double()
    groups = [
        {"params": [w for w in model.parameters() if (w.ndim > 1) == matrices], "weight_decay": decay}
        for matrices, decay in ((True, training.OPTIMIZER.weight_decay), (False, 0.0))
    ]
    optimizer, losses = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8), []
    for step in range(steps):
        loss = plain_loss(model, step)
        loss.backward()
        losses.append(float(loss.detach()))
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.OPTIMIZER.gradient_clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training.OPTIMIZER, step, steps)
        optimizer.step()
        optimizer.zero_grad()
    return {name: w.detach().numpy() for name, w in model.named_parameters()}, losses


def plain_loss(model: Any, step: int) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for index in range(len(STREAM.lengths)):
        tokens, labels = (torch.from_numpy(a) for a in STREAM.sequence(step, index))
        hidden = model.wte(tokens) + model.wpe(torch.arange(len(tokens)))
        for block in model.h:
            hidden = block(hidden, None, causal)
        total = total + functional.cross_entropy(
            model.ln_f(hidden) @ model.wte.weight.T, labels, ignore_index=-100, reduction="sum"
        )
    return total / STREAM.labels(step)


def test_a_model_of_ones_own_trains_in_rings_as_a_plain_torch_loop_trains_it() -> None:
    expected, losses = plain(STEPS)
    plans = [random_plan(STREAM.lengths, 3, seed, degree=2 + seed % 2, key_heads=4) for seed in range(STEPS)]
    assert {task.ulysses for tasks, _ in plans for task in tasks} == {UNSET, 2}
    assert any(task.kind == "ring" for tasks, _ in plans for task in tasks)
    results = run_threads(3, training.train, torch.float64, STREAM, plans, GPT2)
    for weights, _ in results:
        assert weights.keys() == expected.keys()
        assert max(float(np.abs(weights[name] - expected[name]).max()) for name in expected) <= 1e-12
    assert np.allclose(np.sum([part for _, part in results], axis=0), losses, rtol=1e-12, atol=0)


def restored(world: ThreadWorld, uri: str) -> dict[str, np.ndarray]:
    engine = training.engine_of(world, torch.float32, GPT2)  # type: ignore[arg-type]
    store = open_store(uri)
    save_load.load(store, save_load.read_manifest(store, manifest_key(1)).shards, engine.make_room())
    engine.begin(1)
    return training.weights_of(engine)


def test_a_checkpoint_of_a_model_of_ones_own_loads_into_another_number_of_replicas(tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    (saved,) = run_threads(1, training.save_with_manifest, STREAM, uri, GPT2)
    for weights in run_threads(3, restored, uri):
        assert all(np.array_equal(weights[name], saved[name]) for name in saved)


def test_a_model_of_ones_own_has_the_weights_of_before_a_change_of_layout_in_its_own_tensors() -> None:
    """It may have views of them, which the weights of the world before would not change."""
    job, found = Job(GPT2, STREAM), list[tuple[bool, dict[str, np.ndarray]]]()

    def go_on(world: ThreadWorld, source: LiveSource) -> None:
        engine = job.engine(world, 1)
        before = {name: weight.data_ptr() for name, weight in engine.model.weights().items()}
        engine.take_over(source)
        stays = before == {name: weight.data_ptr() for name, weight in engine.model.weights().items()}
        found.append((stays, training.weights_of(engine)))

    run_threads(1, begin, job, job.form(ONE), range(1))
    (worker,) = job.workers.values()
    trained = {box.name: weight.numpy().copy() for box, weight in (worker.weights or {}).items()}
    source = job.source(TWO)
    job.form(TWO)
    run_threads(2, go_on, source)
    for stays, weights in found:
        assert stays and weights.keys() == trained.keys()
        assert all(np.array_equal(weights[name], trained[name]) for name in trained)


WHOLE = """
    from torch import nn
    import torch
    from coxswain.holdings import ParameterSpec
    from coxswain_train.model.custom import CustomDecoder
    from gpt2 import GPT2

    class Tiny(CustomDecoder):
        def __init__(self, model, vocabulary, extra=0):
            super().__init__()
            self.table = nn.Parameter(torch.empty(vocabulary + extra, model.hidden))

        stack = (1, 2)

        def embed(self, tokens, positions): ...
        def token_losses(self, hidden, labels): ...

        @staticmethod
        def parameter_specs(model, vocabulary, extra=0):
            return [ParameterSpec("table", (vocabulary, model.hidden), "first")]

    class More(Tiny):
        def __init__(self, model, vocabulary, shape, frozen=False):
            super().__init__(model, vocabulary)
            self.more = nn.Parameter(torch.empty(shape), requires_grad=not frozen)

        @staticmethod
        def parameter_specs(model, vocabulary, shape, frozen=False):
            return [*Tiny.parameter_specs(model, vocabulary), ParameterSpec("more", tuple(shape), "first")]

    class Fewer(Tiny):
        @staticmethod
        def parameter_specs(model, vocabulary):
            return [*Tiny.parameter_specs(model, vocabulary), ParameterSpec("bias", (4,), "last")]

    class Bare(nn.Module):
        def __init__(self, model, vocabulary):
            super().__init__()

    class Nameless(Tiny):
        parameter_specs = None

    class Dropping(GPT2):
        def __init__(self, model, vocabulary, context):
            super().__init__(model, vocabulary, context)
            for layer in self.h:
                layer.register_forward_hook(lambda layer, _, out: nn.functional.dropout(out, 0.5, layer.training))

    class Sharing(GPT2):  # two layers share a projection; one has the model's positions, too
        def __init__(self, model, vocabulary, context):
            super().__init__(model, vocabulary, context)
            self.h[1].c_fc, self.h[0].positions = self.h[0].c_fc, self.wpe

        @staticmethod
        def parameter_specs(model, vocabulary, context):
            return [s for s in GPT2.parameter_specs(model, vocabulary, context) if not s.name.startswith("h.1.c_fc")]

    class Repeating(GPT2):  # one layer, twice
        def __init__(self, model, vocabulary, context):
            super().__init__(model, vocabulary, context)
            del self.h[1:]

        stack = property(lambda self: [self.h[0]] * 2)

        @staticmethod
        def parameter_specs(model, vocabulary, context):
            specs = GPT2.parameter_specs(model, vocabulary, context)
            return [s for s in specs if not s.name.startswith("h.1.")]

    class Leaving(CustomDecoder):
        def __init__(self, model, vocabulary):
            raise SystemExit("no licence")

    function = print
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in (
        ("mine", WHOLE),
        ("broken", "import no_such_dependency"),
        ("torn", "def f(:"),
        ("gone", "raise SystemExit(0)"),
    ):
        (tmp_path / f"{name}.py").write_text(dedent(text))
    yield
    for name in ("mine", "broken", "torn", "gone"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("module")
def test_a_class_that_keeps_the_protocol_is_the_model() -> None:
    custom = replace(GPT2, custom=CustomModel(path="mine:Tiny"))
    assert decoder_of(custom, 64).weights()["table"].shape == (64, 32)


def test_a_group_that_matches_no_weight_of_a_model_of_ones_own_is_refused_with_some_of_its_names() -> None:
    groups = (ParameterGroupConfig(match="lm_head.*", weight_decay=0.0),)
    says = r"optimizer\.groups\[0\]\.match 'lm_head\.\*' .*; names are such as wte\.weight, wpe\.weight, "
    with pytest.raises(Refused, match=says) as caught:
        run_threads(1, training.engine_of, torch.float32, GPT2, replace(training.OPTIMIZER, groups=groups))
    assert caught.value.reason == "GroupMatchesNothing"


DROPPING = replace(GPT2, custom=CustomModel(path="mine:Dropping", arguments={"context": 64}))
PLAN = random_plan(STREAM.lengths, 1, 3)


def drawn(world: ThreadWorld, recompute: Recompute) -> tuple[list[np.ndarray], list[int]]:
    """The gradient of a step, and the state of the random numbers behind it."""
    torch.manual_seed(7)
    layout, memory = layout_of([(1, 2)]), MemoryPolicy(recompute)
    _, owned = training.owned_gradient(world, DROPPING, layout, STREAM, PLAN, memory=memory)  # type: ignore[arg-type]
    return [gradient for _, gradient in owned], torch.get_rng_state().tolist()


@pytest.mark.usefixtures("module")
def test_a_layer_that_is_computed_again_draws_the_same_random_numbers_and_those_after_it_stay() -> None:
    found = [run_threads(1, drawn, recompute)[0] for recompute in ("None", "Selective", "Full")]
    for gradients, state in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(gradients, found[0][0], strict=True))
        assert state == found[0][1]


def shared(world: ThreadWorld, model: ModelConfig, recompute: Recompute) -> list[tuple[str, np.ndarray]]:
    """The gradient of a step of two replicas, in the boxes of this rank."""
    plan, memory = random_plan(STREAM.lengths, 2, 3), MemoryPolicy(recompute)
    layout = layout_of([(1, 2)], [(1, 2)])
    _, owned = training.owned_gradient(world, model, layout, STREAM, plan, memory=memory)  # type: ignore[arg-type]
    return [(box.name, gradient) for box, gradient in owned]


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("name", ["Sharing", "Repeating"])
@pytest.mark.parametrize("recompute", ["Selective", "Full"])
def test_layers_that_share_a_weight_have_the_same_gradient_of_it_when_they_are_computed_again(
    name: str, recompute: Recompute
) -> None:
    model = replace(GPT2, custom=CustomModel(path=f"mine:{name}", arguments={"context": 64}))
    expected, found = (run_threads(2, shared, model, how) for how in ("None", recompute))
    assert any(name.startswith("h.0.c_fc") for mine in expected for name, _ in mine)
    for one, other in zip(expected, found, strict=True):
        for (name, a), (_, b) in zip(one, other, strict=True):
            assert np.allclose(a, b, rtol=1e-12, atol=1e-15), name


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("mine:Sharing", r"h\.0\.c_fc\..*|wpe\.weight"),
        ("mine:Repeating", r"h\.0\..*"),
        ("gpt2:GPT2", ""),
        ("mine:Tiny", ""),
    ],
)
def test_weights_that_a_layer_has_and_another_place_of_the_model_too_are_known(name: str, shares: str) -> None:
    arguments = {} if name == "mine:Tiny" else {"context": 64}
    made = decoder_of(replace(GPT2, custom=CustomModel(path=name, arguments=arguments)), 64)
    assert shared_weights(made) == {name for name in made.weights() if re.fullmatch(shares, name)}


def losses(world: ThreadWorld, model: ModelConfig) -> tuple[float, float | None, bool]:
    """Of a step that changes nothing, of an evaluation of the same sequences, and whether the model trains afterwards."""
    still = replace(training.OPTIMIZER, learning_rate=0.0)
    engine = training.engine_of(world, torch.float64, model, still)  # type: ignore[arg-type]
    engine.initialise(training.SEED)
    work = training.work_of(STREAM, 0, PLAN, 0)
    forwards = [operation for operation in work.operations if operation.kind == "F"]
    result = engine.step(dataclasses.replace(work, evaluation=forwards), time.perf_counter())
    return result.loss_sum, result.evaluation_loss_sum, engine.model.training  # type: ignore[attr-defined]


@pytest.mark.usefixtures("module")
def test_an_evaluation_drops_nothing_and_the_next_step_does_again() -> None:
    ((plain, expected, _),), ((dropped, found, training_again),) = (run_threads(1, losses, m) for m in (GPT2, DROPPING))
    assert found == expected == pytest.approx(plain, rel=1e-12)
    assert dropped != pytest.approx(plain, rel=1e-9)
    assert training_again


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("path", "arguments", "layers", "says"),
    [
        ("no_such_package.gpt:GPT", {}, 2, "(ModuleNotFoundError: No module named 'no_such_package'); put no"),
        ("broken:GPT", {}, 2, "cannot be imported (ModuleNotFoundError: No module named 'no_such_dependency')"),
        ("torn:GPT", {}, 2, "cannot be imported (SyntaxError: "),
        ("gone:GPT", {}, 2, "cannot be imported (SystemExit: 0)"),
        ("mine:Leaving", {}, 2, "cannot be made (SystemExit: no licence)"),
        ("mine:GPT", {}, 2, "mine has no class GPT"),
        ("mine:function", {}, 2, "mine has no class function"),
        ("mine:Tiny", {"context": 3}, 2, "cannot be made (TypeError: Tiny.__init__() got an unexpected keyword argument"),
        ("mine:Bare", {}, 2, "lacks stack, rotary, embed, token_losses, weights, leave_out_empty_rows, parameter_specs, which"),
        ("mine:Nameless", {}, 2, "has no parameter_specs (TypeError: 'NoneType' object is not callable)"),
        ("mine:Tiny", {"extra": 1}, 2, "other weights than its parameter_specs: table is [65, 32], the specs say [64, 32]"),
        ("mine:Fewer", {}, 2, "other weights than its parameter_specs: bias is absent, the specs say [4]"),
        ("mine:More", {"shape": []}, 2, "cannot be trained: more has the shape [], without a row; give a single number [1]"),
        ("mine:More", {"shape": [0, 4]}, 2, "cannot be trained: more has the shape [0, 4], without a row"),
        ("mine:More", {"shape": [4], "frozen": True}, 2, "cannot be trained: more takes no gradient; make it a buffer"),
        ("mine:Tiny", {}, 3, "has 2 layers in its stack, model.custom.layers is 3"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_users_class_is_said_on_one_line(
    path: str, arguments: dict[str, Any], layers: int, says: str
) -> None:
    with pytest.raises(Refused) as caught:
        decoder_of(replace(GPT2, layers=layers, custom=CustomModel(path=path, arguments=arguments)), 64)
    assert caught.value.reason == "BadModel"
    assert f"model.custom.class {path!r}: " in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("context", "longest", "fits"), [(64, 64, True), (64, 65, False), (1, 2, False), (64, 4096, False)]
)
def test_a_table_of_positions_shorter_than_the_longest_sequence_is_refused_with_both_numbers(
    context: int, longest: int, fits: bool
) -> None:
    model = replace(GPT2, custom=CustomModel(path="gpt2:GPT2", arguments={"context": context}))
    says = f"embeds {context} positions, and batch.maxSequenceTokens is {longest}; give it more"
    with nullcontext() if fits else pytest.raises(Refused, match=says):
        decoder_of(model, training.VOCABULARY, longest=longest)
    assert decoder_of(model, training.VOCABULARY).weights()  # of a run that goes on


def test_a_model_that_finds_no_position_at_all_is_not_taken_for_one_with_a_short_table() -> None:
    """Something else is out of its range, and the first step names it."""

    class Lost:
        def embed(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            raise IndexError("another table")

    assert missing_positions(Lost(), 64) == ""


class OneOfTwo:
    """A tensor group, as its first rank sees it."""

    index, degree = 0, 2

    def sum(self, x: torch.Tensor) -> None: ...

    def maximum(self, x: torch.Tensor) -> None: ...


@pytest.mark.parametrize("part", [ModelPart(0, 1, 2), ModelPart(1, 2, 2), ModelPart(0, 2, 2, OneOfTwo())])
def test_a_model_of_ones_own_is_not_split(part: ModelPart) -> None:
    with pytest.raises(
        Refused, match=r"gpt2:GPT2': is whole on each device; set parallelism\.tensor and \.pipeline to 1"
    ):
        decoder_of(GPT2, training.VOCABULARY, part)
    assert decoder_of(GPT2, training.VOCABULARY, ModelPart(0, 2, 2)).weights()


def draws_of(world: ThreadWorld, seed: int, step: int, replica: int = 0) -> list[float]:
    """What a layer draws in a step of one replica."""
    engine, found = training.engine_of(world, torch.float64, GPT2, layout=ONE), list[float]()  # type: ignore[arg-type]
    engine.initialise(training.SEED)
    engine.seed, engine.seat = seed, replace(engine.seat, replica=replica)
    next(iter(engine.model.stack)).register_forward_hook(lambda *_: found.extend(torch.rand(4).tolist()))  # type: ignore[arg-type]
    engine.compute(training.work_of(STREAM, step, PLAN, 0, 0))
    return found


def test_layers_draw_by_the_jobs_seed_the_replica_and_the_step() -> None:
    which = ((7, 0), (7, 0), (7, 1), (8, 0), (7, 0, 1))
    ((first, again, *others),) = run_threads(1, lambda world: [draws_of(world, *of) for of in which])
    assert first == again and len({tuple(each) for each in (first, *others)}) == 4
    seeds = set()
    for replica in range(3):
        seed_draws(7, replica, 0)
        seeds.add(torch.initial_seed())
    assert len(seeds) == 3
