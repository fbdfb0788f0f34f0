"""Tokens a second and model FLOPs utilisation on one CUDA device, beside a plain torch loop and torchtitan.

    python -m bench.gpu [--preset llama-1b] [--tokens 8192] [--length 2048] [--steps 20] [--recompute None] [--hardware h100-80g]

Same model in bf16, same random packs, fused AdamW; prints one JSON object. The peak of memory stands beside the predicted one.
torchtitan runs by its own command (`torchrun`), with its own data, at the same shape, batch and sequence length. Exit code 1
without a device.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from coxswain.config import ModelConfig, OptimizerConfig
from coxswain.cost.memory import Workload, peaks
from coxswain.holdings import ParameterSpec
from coxswain.layout import Device, Layout, uniform_layout
from coxswain.models import parameter_specs
from coxswain.plan.values import Operation, Slice, Task
from coxswain.presets import PRESETS
from coxswain_train.engine.engine import Engine, StepInput
from coxswain_train.engine.memory import MemoryPolicy
from coxswain_train.engine.step import Batch, parts
from coxswain_train.model.attention import pack_attention
from coxswain_train.model.llama import Llama
from coxswain_train.parallel.process_groups import ProcessGroups, leave_world

# Dense bf16, from the vendors' data sheets, in TFLOP/s.
PEAK_TFLOPS = {"a100-40g": 312, "a100-80g": 312, "h100-80g": 989}
VOCABULARY = 32_000
OPTIMIZER = OptimizerConfig(learning_rate=1e-4, weight_decay=0.1, gradient_clip=1.0)
WARM = 3  # steps before the clock starts
CUDA = torch.device("cuda")


def flops(model: ModelConfig, specs: tuple[ParameterSpec, ...], tokens: int, length: int) -> float:
    """Model FLOPs of a step, forward and backward: 6 a weight of a matrix and token, and causal attention; nothing recomputed."""
    matrices = sum(s.box(0, 1).elements for s in specs if len(s.shape) > 1 and "embed" not in s.name)
    return tokens * (6.0 * matrices + 3 * 2 * length * model.hidden * model.layers)


def batches(tokens: int, length: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(0)
    positions = torch.arange(length).repeat(tokens // length)
    while True:
        ids = torch.randint(0, VOCABULARY, (tokens + 1,), generator=generator)
        yield Batch(*(x.to(CUDA) for x in (ids[:-1], ids[1:], positions)))


def timed(step: Callable[[Batch], Any], tokens: int, length: int, steps: int) -> tuple[float, int]:
    """Seconds a step, and the most bytes at one time."""
    source = batches(tokens, length)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM):
        step(next(source))
    ready = [next(source) for _ in range(steps)]
    torch.cuda.synchronize()
    began = time.perf_counter()
    for batch in ready:
        step(batch)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps, torch.cuda.max_memory_allocated()


def ours(model: ModelConfig, layout: Layout, options: argparse.Namespace) -> Callable[[Batch], Any]:
    world = ProcessGroups(dist.HashStore(), 0, 1, CUDA)
    memory = MemoryPolicy(options.recompute)
    seat = layout.ranks()[0]
    engine = Engine(model, VOCABULARY, OPTIMIZER, 1000, layout, seat, world, CUDA, torch.bfloat16, memory=memory)
    engine.initialise(0)
    count = options.tokens // options.length
    task = Task(0, "pack", (0,), tuple(Slice(0, i, 0, options.length) for i in range(count)))
    mine, operations = parts([task], 0), (Operation("F", 0), Operation("B", 0))

    def step(batch: Batch) -> None:
        work = StepInput(0, mine, operations, batch, options.tokens, options.tokens, 0)
        engine.step(work, time.perf_counter())

    return step


def plain(model: ModelConfig, options: argparse.Namespace) -> Callable[[Batch], Any]:
    """Whole logits, torch's own AdamW in bf16 with fp32 states of its own making: what one writes first."""
    module = Llama(model, VOCABULARY).to(CUDA, torch.bfloat16)
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    head = module.model.embed_tokens if module.lm_head is None else module.lm_head
    attend = pack_attention([options.length] * (options.tokens // options.length))

    def step(batch: Batch) -> None:
        hidden, rotary = module.embed(batch.tokens), module.rotary(batch.positions)
        for layer in module.stack:
            hidden = layer(hidden, rotary, attend)
        loss = functional.cross_entropy((module.model.norm(hidden) @ head.weight.T).float(), batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def result(seconds: float, most: int, work: float, options: argparse.Namespace) -> dict[str, float]:
    peak = PEAK_TFLOPS[options.hardware] * 1e12
    return {
        "tokens_per_second": options.tokens / seconds, "utilisation": work / seconds / peak, "peak_gib": most / 2**30,
    }  # fmt: skip


def titan() -> str:
    if importlib.util.find_spec("torchtitan") is None:
        return "not installed: pip install torchtitan"
    return "installed: torchrun --nproc_per_node 1 -m torchtitan.train, at the same shape, batch and sequence length"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="llama-1b", choices=list(PRESETS))
    parser.add_argument("--tokens", type=int, default=8192, help="of a step: one pack")
    parser.add_argument("--length", type=int, default=2048, help="of each sequence")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--recompute", default="None", choices=["None", "Selective", "Full"])
    parser.add_argument("--hardware", default="h100-80g", choices=list(PEAK_TFLOPS))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench.gpu needs a CUDA device: torch finds none")
    model = PRESETS[options.preset]
    specs, layout = parameter_specs(model, VOCABULARY), uniform_layout([Device(0, 0)], model.layers)
    work = flops(model, specs, options.tokens, options.length)
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), **vars(options), "torchtitan": titan()}
    for name, make in (("coxswain", lambda: ours(model, layout, options)), ("plain", lambda: plain(model, options))):
        found[name] = result(*timed(make(), options.tokens, options.length, options.steps), work, options)
        torch.cuda.empty_cache()
    leave_world()
    predicted = peaks(model, specs, layout, Workload(2, options.tokens, options.recompute))[0, 0, 0].total
    found["predicted_peak_gib"] = predicted / 2**30
    print(json.dumps(found))


if __name__ == "__main__":
    main()
