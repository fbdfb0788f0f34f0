"""Cross entropy of a linear head, chunk by chunk, so that the logits of a task never exist at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coxswain_train.model.tensor_parallel import TensorGroup, enter

IGNORED = -100  # label of a token without a next one
CHUNK = 1024  # rows whose logits exist at one time


@dataclass(frozen=True, slots=True)
class IdRange:
    """The ids of which a rank has logits, where a tensor group shares the vocabulary: `first` and the following."""

    group: TensorGroup
    first: int


class _LinearCrossEntropy(torch.autograd.Function):
    """Makes the gradients in the forward pass: backward only scales them, so no logits are kept."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int, ids: IdRange | None) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        hidden_grad, weight_grad = torch.zeros_like(hidden), torch.zeros_like(weight, dtype=wide)
        total = torch.zeros((), dtype=wide, device=hidden.device)
        for start in range(0, len(labels), chunk):
            rows = slice(start, start + chunk)
            if ids is None:
                loss, gradient = _loss_and_gradient(hidden[rows], weight, labels[rows], wide)
            else:
                loss, gradient = _shared_loss_and_gradient(hidden[rows], weight, labels[rows], wide, ids)
            total += loss
            hidden_grad[rows] = gradient @ weight
            weight_grad += (gradient.T @ hidden[rows]).to(wide)
            del gradient  # else it is alive beside the next rows' logits
        ctx.save_for_backward(hidden_grad, weight_grad.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (grad,), (hidden_grad, weight_grad) = grads, ctx.saved_tensors
        return hidden_grad * grad, weight_grad * grad, None, None, None


def _loss_and_gradient(hidden: Tensor, weight: Tensor, labels: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Summed loss and d(loss)/d(logits) of some rows."""
    log_probability = (hidden @ weight.T).to(wide).log_softmax(-1)
    valid = (labels != IGNORED).unsqueeze(1)
    index = labels.clamp(min=0).unsqueeze(1)
    loss = -log_probability.gather(1, index).mul(valid).sum()
    gradient = log_probability.exp_()
    gradient.scatter_add_(1, index, torch.full_like(index, -1, dtype=wide))
    return loss, gradient.mul_(valid).to(hidden.dtype)


def _losses(hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int) -> Tensor:
    wide = torch.promote_types(hidden.dtype, torch.float32)
    total = torch.zeros((), dtype=wide, device=hidden.device)
    for start in range(0, len(labels), chunk):
        rows, mine = hidden[start : start + chunk], labels[start : start + chunk].unsqueeze(1)
        log_probability = (rows @ weight.T).to(wide).log_softmax(-1)
        total -= log_probability.gather(1, mine.clamp(min=0)).mul(mine != IGNORED).sum()
    return total


def _shared_loss_and_gradient(
    hidden: Tensor, weight: Tensor, labels: Tensor, wide: torch.dtype, ids: IdRange
) -> tuple[Tensor, Tensor]:
    """The same where `weight` has the rows of some ids only, or of none. The loss is whole on each rank of the group."""
    logits = (hidden @ weight.T).to(wide)
    largest = logits.amax(-1) if len(weight) else logits.new_full(labels.shape, -torch.inf)
    ids.group.maximum(largest)
    logits.sub_(largest.unsqueeze(1))
    local = labels - ids.first
    here = ((local >= 0) & (local < len(weight))).nonzero().squeeze(1)  # tokens whose label is one of these ids
    own = logits.new_zeros(labels.shape).index_put_((here,), logits[here, local[here]])
    gradient = logits.exp_()
    sums = torch.stack((gradient.sum(-1), own))
    ids.group.sum(sums)
    valid = labels != IGNORED
    loss = (sums[0].log() - sums[1]).mul(valid).sum()
    gradient.div_(sums[0].unsqueeze(1))
    gradient[here, local[here]] -= 1
    return loss, gradient.mul_(valid.unsqueeze(1)).to(hidden.dtype)


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int = CHUNK, ids: IdRange | None = None
) -> Tensor:
    """Sum over rows of -log softmax(hidden @ weight.T)[label], in nats.

    hidden [n, h], weight [vocabulary, h], labels [n]. The logits of `chunk` rows exist at one time. With `ids`,
    `weight` has the rows of these ids, and the other ranks of the group compute the same with theirs.
    Where gradients are disabled, none are made for whole weights.
    """
    if ids is None and not torch.is_grad_enabled():
        return _losses(hidden, weight, labels, chunk)
    if ids is not None:
        hidden = enter(hidden, ids.group)
    return _LinearCrossEntropy.apply(hidden, weight, labels, chunk, ids)  # type: ignore[no-any-return]
