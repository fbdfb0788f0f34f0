"""The rival of bench/engine.py: a plain torch loop in one process, on the same tokens, at its best.

Same model, packed steps that lie in memory already, fused AdamW. Each way to attend within a pack
and to take the loss is tried for some steps, and the fastest one is measured. Run by
bench/engine.py; prints one JSON object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from coxswain.api.jobfiles import load_config
from coxswain.boxes import full_box as box
from coxswain.config import JobConfig
from coxswain_train.dataset import StepBatch, StreamDataset
from coxswain_train.model.attention import pack_attention
from coxswain_train.model.init_weights import init_box
from coxswain_train.model.llama import AttentionFn, Llama
from coxswain_train.model.loss import IGNORED, linear_cross_entropy

Attention = Callable[[StepBatch], AttentionFn]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Rate:
    """What was measured in one process. CPU seconds are of all its threads."""

    tokens_per_second: float
    cpu_per_1000: float  # tokens
    step_seconds: float
    ways: str
    first_loss: float  # of step 0, untrained: the whole system must find the same


def masked(step: StepBatch) -> AttentionFn:
    """One call for the whole pack, with a mask of its blocks."""
    sequence = torch.repeat_interleave(step.bounds.diff())
    mask = (sequence[:, None] == sequence[None]).tril()

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = query[None], key[None], value[None]
        return functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)[0]

    return attend


def by_sequence(step: StepBatch) -> AttentionFn:
    """One causal call a sequence."""
    return pack_attention(step.bounds.diff().tolist())


def whole(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """All logits at once."""
    return functional.cross_entropy(hidden @ weight.T, labels, ignore_index=IGNORED, reduction="sum")


ATTENTION: dict[str, Attention] = {"by sequence": by_sequence, "masked": masked}
LOSS: dict[str, Loss] = {"whole logits": whole, "logits in chunks": linear_cross_entropy}


class Loop:
    """Model and optimizer."""

    def __init__(self, job: JobConfig, vocabulary: int) -> None:
        self.model = Llama(job.model, vocabulary)
        for name, weight in self.model.named_parameters():
            shape = tuple(weight.shape)
            weight.data = torch.from_numpy(init_box(job.seed, box(name, shape), shape, job.model))
        self._clip = job.optimizer.gradient_clip
        groups = [
            {"params": [w for w in self.model.parameters() if (w.ndim > 1) == matrices], "weight_decay": decay}
            for matrices, decay in ((True, job.optimizer.weight_decay), (False, 0.0))
        ]
        betas = job.optimizer.beta1, job.optimizer.beta2
        self._optimizer = torch.optim.AdamW(groups, lr=job.optimizer.learning_rate, betas=betas, fused=True)

    def step(self, step: StepBatch, attention: Attention, loss: Loss) -> float:
        """One update; the loss per label."""
        total = self.loss(step, attention, loss)
        total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(total.detach())

    def loss(self, step: StepBatch, attention: Attention, loss: Loss) -> Tensor:
        model, attend = self.model, attention(step)
        rotary, hidden = model.rotary(step.positions), model.embed(step.tokens, step.positions)
        for layer in model.stack:
            hidden = layer(hidden, rotary, attend)
        head = model.model.embed_tokens if model.lm_head is None else model.lm_head
        return loss(model.model.norm(hidden), head.weight, step.labels) / step.total_labels


def best_ways(loop: Loop, taken: Sequence[StepBatch]) -> tuple[str, str]:
    """The fastest pair, by the median of some steps; warms the process up as well."""
    seconds = {
        (a, b): median(_seconds(loop, step, a, b) for step in taken) for a, b in itertools.product(ATTENTION, LOSS)
    }
    return min(seconds, key=lambda ways: seconds[ways])


def _seconds(loop: Loop, step: StepBatch, attention: str, loss: str) -> float:
    began = time.perf_counter()
    loop.step(step, ATTENTION[attention], LOSS[loss])
    return time.perf_counter() - began


def measure(job: JobConfig, stream: Iterator[StepBatch], vocabulary: int, tries: int, count: int) -> Rate:
    loop = Loop(job, vocabulary)
    taken = list(itertools.islice(stream, tries))
    first_loss = loop.loss(taken[0], by_sequence, whole).item()
    attention, loss = best_ways(loop, taken)
    steps = list(itertools.islice(stream, count))  # in memory before the clock starts
    began, cpu = time.perf_counter(), time.process_time()
    for step in steps:
        loop.step(step, ATTENTION[attention], LOSS[loss])
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    tokens = sum(len(step.tokens) for step in steps)
    return Rate(tokens / seconds, 1000 * cpu / tokens, seconds / count, f"attention {attention}, {loss}", first_loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--cache", required=True, help="uri of the block index")
    parser.add_argument("--tries", type=int, default=3, help="steps of each way before the measurement")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    job = load_config([options.job])
    dataset = StreamDataset(job.mix, job.batch, options.cache)
    vocabulary = job.model.vocabulary or dataset.vocabulary
    print(json.dumps(asdict(measure(job, iter(dataset), vocabulary, options.tries, options.steps))))


if __name__ == "__main__":
    main()
