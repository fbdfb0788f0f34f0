"""Cross entropy of a linear head, chunk by chunk, so that the logits of a task never exist at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coxswain_train.model.tensor_parallel import TensorGroup, enter

IGNORED = -100  # label of a token without a next one
CHUNK = 1024  # rows whose logits exist at one time
_SLICES = 16


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
            _add_product(weight_grad, gradient.T, hidden[rows])
            del gradient  # else it is alive beside the next rows' logits
        ctx.save_for_backward(hidden_grad, weight_grad.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (grad,), (hidden_grad, weight_grad) = grads, ctx.saved_tensors
        return hidden_grad * grad, weight_grad.mul_(grad), None, None, None


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Adds a @ b, without a second matrix as wide as `total`. A narrower product is added in slices: a CPU widens each first."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
        return
    for rows, part in zip(total.chunk(_SLICES), (a @ b).chunk(_SLICES), strict=True):
        rows += part


def _loss_and_gradient(hidden: Tensor, weight: Tensor, labels: Tensor, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Summed loss and d(loss)/d(logits) of some rows."""
    log_probability = (hidden @ weight.T).to(wide).log_softmax(-1)
    valid = (labels != IGNORED).unsqueeze(1)
    index = labels.clamp(min=0).unsqueeze(1)
    loss = -log_probability.gather(1, index).mul(valid).sum()
    gradient = log_probability.exp_()
    gradient.scatter_add_(1, index, torch.full_like(index, -1, dtype=wide))
    return loss, gradient.mul_(valid).to(hidden.dtype)


def _loss(hidden: Tensor, weight: Tensor, labels: Tensor, wide: torch.dtype) -> Tensor:
    """Summed loss of some rows."""
    log_probability = (hidden @ weight.T).to(wide).log_softmax(-1)
    return -log_probability.gather(1, labels.clamp(min=0).unsqueeze(1)).mul((labels != IGNORED).unsqueeze(1)).sum()


class _Shared(NamedTuple):
    """Some rows over the ids of one rank, of which its group has all."""

    exponentials: Tensor  # of the logits, with the largest of the group subtracted
    sums: Tensor  # [2, rows]: of the exponentials, and the label's own logit, over the group
    here: Tensor  # [rows, 1]: whether the label is one of these ids
    place: Tensor  # [rows, 1]: its place among them, or any place

    def loss(self, labels: Tensor) -> Tensor:
        return (self.sums[0].log() - self.sums[1]).mul(labels != IGNORED).sum()


def _shared(hidden: Tensor, weight: Tensor, labels: Tensor, wide: torch.dtype, ids: IdRange) -> _Shared:
    """`weight` has the rows of some ids only, or of none. The host does not wait for the device."""
    logits = (hidden @ weight.T).to(wide)
    largest = logits.amax(-1) if len(weight) else logits.new_full(labels.shape, -torch.inf)
    ids.group.maximum(largest)
    logits.sub_(largest.unsqueeze(1))
    local = (labels - ids.first).unsqueeze(1)
    here, place = (local >= 0) & (local < len(weight)), local.clamp(0, max(0, len(weight) - 1))
    own = logits.gather(1, place).where(here, 0.0).squeeze(1) if len(weight) else logits.new_zeros(labels.shape)
    exponentials = logits.exp_()
    sums = torch.stack((exponentials.sum(-1), own))
    ids.group.sum(sums)
    return _Shared(exponentials, sums, here, place)


def _shared_loss_and_gradient(
    hidden: Tensor, weight: Tensor, labels: Tensor, wide: torch.dtype, ids: IdRange
) -> tuple[Tensor, Tensor]:
    """The same where `weight` has the rows of some ids only, or of none. The loss is whole on each rank of the group."""
    found = _shared(hidden, weight, labels, wide, ids)
    gradient = found.exponentials.div_(found.sums[0].unsqueeze(1))
    if len(weight):
        gradient.scatter_add_(1, found.place, -found.here.to(wide))
    return found.loss(labels), gradient.mul_((labels != IGNORED).unsqueeze(1)).to(hidden.dtype)


def _losses(hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int, ids: IdRange | None) -> Tensor:
    """Without gradients."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    total = torch.zeros((), dtype=wide, device=hidden.device)
    for start in range(0, len(labels), chunk):
        rows, mine = hidden[start : start + chunk], labels[start : start + chunk]
        shared = None if ids is None else _shared(rows, weight, mine, wide, ids)
        total += _loss(rows, weight, mine, wide) if shared is None else shared.loss(mine)
    return total


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, chunk: int = CHUNK, ids: IdRange | None = None
) -> Tensor:
    """Sum over rows of -log softmax(hidden @ weight.T)[label], in nats.

    hidden [n, h], weight [vocabulary, h], labels [n]. The logits of `chunk` rows exist at one time. With `ids`,
    `weight` has the rows of these ids, and the other ranks of the group compute the same with theirs. Where gradients
    are disabled, none are made.
    """
    if not torch.is_grad_enabled():
        return _losses(hidden, weight, labels, chunk, ids)
    if ids is not None:
        hidden = enter(hidden, ids.group)
    return _LinearCrossEntropy.apply(hidden, weight, labels, chunk, ids)  # type: ignore[no-any-return]
