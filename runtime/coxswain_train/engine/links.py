"""What passes between the stages of a replica: outputs of layers to the next, their gradients back."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from coxswain.neighbours import Neighbours
from coxswain.plan.values import Operation
from coxswain_train.model.ring import Exchange, Message, Pending

PARTING = 2  # gradients for the stage before, or outputs of an evaluation, that are kept while they may be on their way


@dataclass(frozen=True, slots=True)
class Coming:
    """The next operation of the list, and how many tokens of its task this replica has."""

    operation: Operation
    tokens: int


class StageLinks:
    """One rank's links to the stages before and after, in one step. `exchange` is over all ranks of the world.

    Activations are [tokens, width]. What is sent is kept until it has gone: outputs until their gradients are back, of gradients,
    and of outputs of an evaluation, the last few.
    """

    def __init__(
        self, neighbours: Neighbours, exchange: Exchange, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._neighbours, self._exchange, self._width, self._dtype, self._device = (
            neighbours, exchange, width, dtype, device,
        )  # fmt: skip
        self._arriving: tuple[Tensor, Pending] | None = None
        self._sent: dict[Operation, Pending] = {}  # outputs whose gradients come back
        self._parting: deque[Pending] = deque()  # what nothing comes back for

    @property
    def last(self) -> bool:
        """Whether this stage has the losses."""
        return self._neighbours.gradient_from is None

    def trade(self, done: Operation | None, leaving: Tensor | None, coming: Coming | None) -> None:
        """Starts one batch: what the operation that is done sends, and what the coming one receives."""
        sends, receives = self._sends(done, leaving), self._receives(coming)
        if not sends and not receives:
            return
        pending = self._exchange.start(sends, receives)
        if done is not None and sends:
            self._keep(done, pending)
        self._arriving = (receives[0][1], pending) if receives else None

    def _keep(self, done: Operation, pending: Pending) -> None:
        """Waits for the oldest of too many: plans are checked for ranks that end one batch before they begin the next."""
        if done.kind == "F" and torch.is_grad_enabled():
            self._sent[done] = pending
            return
        self._parting.append(pending)
        if len(self._parting) > PARTING:
            self._parting.popleft().wait()

    def received(self, operation: Operation) -> Tensor | None:
        """Waits for what the coming operation receives; None when that is nothing."""
        if self._arriving is None:
            return None
        (tensor, pending), self._arriving = self._arriving, None
        pending.arrived()
        if operation.kind == "B" and (forward := self._sent.pop(Operation("F", operation.task), None)):
            forward.wait()  # the gradient is here, so the output has gone
        return tensor

    def finish(self) -> None:
        """Waits until all that was sent has gone: of outputs the gradients are back."""
        while self._parting:
            self._parting.popleft().wait()

    def _sends(self, done: Operation | None, leaving: Tensor | None) -> list[Message]:
        if done is None or leaving is None:
            return []
        ranks = self._neighbours.output_to if done.kind == "F" else self._neighbours.gradient_to
        return [(rank, leaving) for rank in ranks]

    def _receives(self, coming: Coming | None) -> list[Message]:
        if coming is None:
            return []
        forward = coming.operation.kind == "F"
        rank = self._neighbours.input_from if forward else self._neighbours.gradient_from
        if rank is None:
            return []
        return [(rank, torch.empty(coming.tokens, self._width, dtype=self._dtype, device=self._device))]
