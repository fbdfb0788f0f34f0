"""What a class of the user's own says of its weights, and which buffers it has, is trained as it is meant, or refused by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch

from coxswain.config import CustomModel, ModelConfig
from coxswain.errors import Refused
from coxswain_train.engine.draws import seed_draws
from coxswain_train.engine.memory import MemoryPolicy, Recompute
from coxswain_train.model.attention import pack_attention
from coxswain_train.model.custom import decoder_of
from tests.distributed import training
from tests.distributed.plans import Plan, random_plan
from tests.distributed.reference import Stream
from tests.distributed.threads import ThreadWorld, run_threads

EXAMPLES = Path(__file__).parents[2] / "examples"
STREAM = Stream(lengths=(1, 3, 7, 16, 29), vocabulary=training.VOCABULARY)
PLANS_OF_ONE = [random_plan(STREAM.lengths, 1, 3)]
PLANS = [random_plan(STREAM.lengths, 2, seed, degree=2, key_heads=4) for seed in range(2)]

CLASSES = """
    from dataclasses import replace

    import torch
    from torch import nn

    from coxswain.holdings import ParameterSpec
    from gpt2 import GPT2

    def specs_as(change):
        return type("Changed", (GPT2,), {"parameter_specs": staticmethod(lambda *a, **k: change(GPT2.parameter_specs(*a, **k)))})

    def at(place):
        return specs_as(lambda specs: [replace(s, place=place) if s.name == "wpe.weight" else s for s in specs])

    Generator = specs_as(iter)
    Lists = specs_as(lambda specs: [replace(s, shape=list(s.shape)) for s in specs])
    Nothing = specs_as(lambda specs: None)
    Tuples = specs_as(lambda specs: [(s.name, s.shape) for s in specs])
    Twice = specs_as(lambda specs: [*specs, specs[0]])
    Comma = specs_as(lambda specs: [replace(s, shape=32) if s.name == "ln_f.bias" else s for s in specs])
    Beyond, Before, Nowhere = at(2), at(-1), at("head")

    class Complex(GPT2):
        def __init__(self, *args, **others):
            super().__init__(*args, **others)
            self.more = nn.Parameter(torch.zeros(4, dtype=torch.complex64))

        @staticmethod
        def parameter_specs(*args, **others):
            return [*GPT2.parameter_specs(*args, **others), ParameterSpec("more", (4,), "last")]

    class Silent(GPT2):
        def weights(self):
            return {name: weight for name, weight in self.named_parameters() if name != "wpe.weight"}

        @staticmethod
        def parameter_specs(*args, **others):
            return [s for s in GPT2.parameter_specs(*args, **others) if s.name != "wpe.weight"]

    class Several(GPT2):
        def token_losses(self, hidden, labels):
            return nn.functional.cross_entropy(self.ln_f(hidden) @ self.wte.weight.T, labels, reduction="none")

    class Detached(GPT2):
        def token_losses(self, hidden, labels):
            return super().token_losses(hidden, labels).detach()

    class Views(GPT2):
        def weights(self):
            return {name: weight * 1 for name, weight in self.named_parameters()}

    class Meta(GPT2):
        def __init__(self, *args, **others):
            with torch.device("meta"):
                super().__init__(*args, **others)

    class Tied(GPT2):  # as its state_dict names the head
        def __init__(self, *args, **others):
            super().__init__(*args, **others)
            self.head = nn.Linear(32, 64, bias=False)
            self.head.weight = self.wte.weight

        def weights(self):
            return dict(self.named_parameters(remove_duplicate=False))

        @staticmethod
        def parameter_specs(*args, **others):
            return [*GPT2.parameter_specs(*args, **others), ParameterSpec("head.weight", (64, 32), "last")]

    class Together(GPT2):
        def __init__(self, *args, **others):
            super().__init__(*args, **others)
            self.ln_f.bias.data = self.ln_f.weight.data

    class Turned(GPT2):  # a projection whose memory has columns first
        def __init__(self, *args, **others):
            super().__init__(*args, **others)
            self.h[0].c_fc.weight = nn.Parameter(torch.empty(32, 48).t())

    class Sparse(GPT2):
        def __init__(self, *args, **others):
            super().__init__(*args, **others)
            self.wpe = nn.Embedding(64, 32, sparse=True)

    class Raising(GPT2):
        stack = property(lambda self: 1 // 0)

    class Apart:
        def __init__(self, model, vocabulary, context): ...
        stack = rotary = embed = token_losses = weights = leave_out_empty_rows = parameter_specs = None

    class Positions(GPT2):  # are learned, and each layer adds them
        def __init__(self, *args, **others):
            super().__init__(*args, **others)
            for layer in self.h:
                layer.register_forward_pre_hook(lambda layer, given: (given[0] + given[1][0], *given[1:]))

        def embed(self, tokens, positions):
            return self.wte(tokens)

        def rotary(self, positions):
            learned = self.wpe(positions)
            return learned, learned

    class Buffers(GPT2):
        def __init__(self, *args, **others):
            super().__init__(*args, **others)
            self.h[0].register_buffer("turns", torch.polar(torch.ones(4), torch.arange(4.0)))
            self.register_buffer("noise", torch.randn(4))
            self.register_buffer("places", torch.arange(4))
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "unusual.py").write_text(dedent(CLASSES))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("unusual", None)


def model_of(path: str) -> ModelConfig:
    custom = CustomModel(path=path, arguments={"context": 64})
    return ModelConfig(layers=2, hidden=32, heads=4, kv_heads=4, feed_forward=48, custom=custom)


@pytest.mark.parametrize("name", ["Generator", "Lists"])
def test_specs_that_are_generated_or_have_lists_as_shapes_train_all_weights(name: str) -> None:
    expected, found = (
        run_threads(2, training.train, torch.float64, STREAM, PLANS, model_of(path))
        for path in ("gpt2:GPT2", f"unusual:{name}")
    )
    for (weights, losses), (others, same) in zip(expected, found, strict=True):
        assert losses == same and weights.keys() == others.keys()
        assert all(np.array_equal(weights[each], others[each]) for each in weights)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Nothing", "has no parameter_specs (TypeError: 'NoneType' object is not iterable)"),
        ("Tuples", "has parameter_specs that cannot be used: tuple is no ParameterSpec; "),
        ("Twice", "cannot be used: wte.weight is there 2 times"),
        ("Comma", "cannot be used: ln_f.bias has the shape 32; give a tuple of whole numbers, such as (4,)"),
        ("Beyond", "cannot be used: wpe.weight has the place 2; give a layer, 0 to 1, or first, last, ends"),
        ("Before", "cannot be used: wpe.weight has the place -1; give a layer"),
        ("Nowhere", "cannot be used: wpe.weight has the place 'head'; give a layer"),
        ("Complex", "cannot be trained: more is complex; keep its real and imaginary parts as real numbers"),
        ("Silent", "has parameters that its weights() does not name: wpe.weight; name them, or make them buffers"),
        ("Views", "cannot be trained: wte.weight is no Parameter; give the parameters themselves, not what"),
        ("Meta", "is on the meta device: wte.weight; wpe.weight; h.0.ln_1.weight and 25 more; make its tensors on the CPU"),
        ("Tied", "names weights twice: head.weight is wte.weight, too; leave one of the names out"),
        ("Together", "names weights twice: ln_f.bias is ln_f.weight, too; leave one of the names out"),
        ("Raising", "cannot be used (ZeroDivisionError: "),
        ("Apart", "lacks to, train, which the protocol Decoder names"),
    ],
)  # fmt: skip
def test_weights_that_would_have_no_owner_no_gradient_or_no_name_are_refused(name: str, says: str) -> None:
    with pytest.raises(Refused) as caught:
        decoder_of(model_of(f"unusual:{name}"), 64)
    assert caught.value.reason == "BadModel"
    assert f"model.custom.class 'unusual:{name}': " in str(caught.value) and says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("query", "key", "value"),
    [
        ((4, 8, 6), (3, 8, 6), (3, 8, 6)),
        ((4, 8, 6), (8, 8, 6), (8, 8, 6)),
        ((4, 8, 6), (0, 8, 6), (0, 8, 6)),
        ((4, 8, 6), (2, 8, 6), (1, 8, 6)),
        ((4, 8, 6), (2, 7, 6), (2, 7, 6)),
        ((4, 8, 6), (2, 8, 6), (2, 8, 4)),
        ((1, 4, 8, 6), (1, 4, 8, 6), (1, 4, 8, 6)),
    ],
)
def test_heads_that_do_not_fit_together_never_reach_a_kernel(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]
) -> None:
    """Kernels read beyond the tensors, or ended the process by a signal."""
    given = [torch.zeros(shape) for shape in (query, key, value)]
    with pytest.raises(Refused) as caught:
        pack_attention([8])(*given)
    assert (caught.value.reason, str(caught.value).partition(";")[0]) == (
        "BadModel",
        f"attend: query {list(query)}, key {list(key)}, value {list(value)}",
    )


def test_heads_in_any_order_of_memory_are_attended_with() -> None:
    drawn = [torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    given = [x.transpose(1, 2).requires_grad_() for x in drawn]
    plain = [x.detach().contiguous().requires_grad_() for x in given]
    found, expected = (pack_attention([5, 3])(*each) for each in (given, plain))
    assert torch.equal(found, expected)
    for gradients in zip(
        *(torch.autograd.grad(out.sum(), x) for out, x in ((found, given), (expected, plain))), strict=True
    ):
        assert torch.equal(*gradients)


def trained(
    world: ThreadWorld, model: ModelConfig, recompute: Recompute, plans: Sequence[Plan] = PLANS
) -> tuple[dict[str, np.ndarray], list[float]]:
    memory = MemoryPolicy(recompute)
    return training.train(world, torch.float64, STREAM, plans, model, memory=memory)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Several", r"token_losses gave a tensor of shape \[\d+\]; give the sum of the losses"),
        ("Detached", "token_losses gave a sum without a gradient"),
    ],
)
def test_losses_that_are_no_sum_with_a_gradient_are_refused(name: str, says: str) -> None:
    with pytest.raises(Refused, match=says) as caught:
        run_threads(1, trained, model_of(f"unusual:{name}"), "None", PLANS_OF_ONE)
    assert caught.value.reason == "BadModel"


def test_sparse_gradients_are_refused_by_the_name_of_their_weight() -> None:
    """Ranks share rows of dense ones."""
    with pytest.raises(Refused, match=r"wpe\.weight has a sparse gradient; give dense ones") as caught:
        run_threads(1, trained, model_of("unusual:Sparse"), "None", PLANS_OF_ONE)
    assert caught.value.reason == "BadModel"


@pytest.mark.parametrize("plans", [PLANS_OF_ONE, PLANS], ids=["one replica", "two replicas"])
def test_a_weight_whose_memory_has_another_order_trains_as_others_do(plans: Sequence[Plan]) -> None:
    ranks = len(plans)
    expected, found = (
        run_threads(ranks, trained, model_of(path), "None", plans) for path in ("gpt2:GPT2", "unusual:Turned")
    )
    for (weights, losses), (others, same) in zip(expected, found, strict=True):
        assert losses == pytest.approx(same, rel=1e-12)
        assert all(np.allclose(weights[name], others[name], rtol=1e-12, atol=1e-14) for name in weights)


@pytest.mark.parametrize("recompute", ["Selective", "Full"])
def test_what_layers_get_as_rotary_may_be_learned_where_they_are_computed_again(recompute: Recompute) -> None:
    model = model_of("unusual:Positions")
    expected, found = (run_threads(2, trained, model, how) for how in ("None", recompute))
    for (weights, losses), (others, same) in zip(expected, found, strict=True):
        assert losses == pytest.approx(same, rel=1e-12)
        assert all(np.allclose(weights[name], others[name], rtol=1e-12, atol=1e-15) for name in weights)


def buffers(world: ThreadWorld, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    engine = training.engine_of(world, dtype, model_of("unusual:Buffers"))  # type: ignore[arg-type]
    made: Any = engine.model
    return dict(made.named_buffers())


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.bfloat16, torch.complex64),
        (torch.float32, torch.complex64),
        (torch.float64, torch.complex128),
    ],
)
def test_complex_buffers_stay_complex_and_others_take_the_type_that_is_computed_in(
    dtype: torch.dtype, wide: torch.dtype
) -> None:
    (found,) = run_threads(1, buffers, dtype)
    assert torch.equal(found["h.0.turns"], torch.polar(torch.ones(4), torch.arange(4.0)).to(wide))
    assert (found["noise"].dtype, found["places"].dtype) == (dtype, torch.int64)


def test_a_buffer_that_is_drawn_is_the_same_in_every_world_whatever_was_drawn_before() -> None:
    found = []
    for replica in range(2):
        seed_draws(7, replica, 3)
        (mine,) = run_threads(1, buffers, torch.float32)
        found.append(mine["noise"])
    assert torch.equal(*found)
