"""What each rank of a new world says that it holds, against what the coordinator's source says of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

from coxswain.errors import Retryable
from coxswain.live import LiveSource
from coxswain_train.live.digests import halves, whole
from coxswain_train.live.state import Cut
from coxswain_train.parallel.zero1 import GlobalStats

_NOTHING = -1.0


class NotHeld(Retryable):
    """A rank does not hold what the source says of it. Nothing has changed: what ranks say next gives a better source."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One rank's. Numbers that fp64 holds exactly, as they travel; -1: nothing."""

    generation: float = _NOTHING
    rank: float = _NOTHING
    step: float = _NOTHING
    ward: float = _NOTHING
    reduced: float = 0.0  # 1: its gradients of the pending step are complete
    weights: float = 0.0  # 1: what its model held is whole, of `step`
    agreed: float = _NOTHING  # the latest step on which it knows that all agreed
    norm: float = 0.0
    loss_sum: float = 0.0

    @classmethod
    def of(cls, cut: Cut | None, weights: bool) -> Self:
        if cut is None:
            return cls()
        pending, ward = cut.pending, _NOTHING if cut.ward is None else float(cut.ward)
        step, stats = (cut.step - 1, cut.agreed) if pending is None else (cut.step, pending.agreed)
        known = GlobalStats(0.0, 0.0) if stats is None else stats
        return cls(
            float(cut.generation), float(cut.rank), float(cut.step), ward, float(pending is not None), float(weights),
            _NOTHING if stats is None else float(step), known.norm, known.loss_sum,
        )  # fmt: skip

    def row(self) -> list[float]:
        return [getattr(self, each.name) for each in fields(self)]


def check_claims(source: LiveSource, claims: Sequence[Claim]) -> GlobalStats | None:
    """The statistics of the step before `source.step`, where a rank is to finish that step. Raises NotHeld, or Retryable at
    another fault."""
    missing = set(range(len(source.layout.ranks()))) - {holder.former for holder in source.holders}
    if missing:
        raise Retryable(f"no rank holds the shard of rank {min(missing)} of generation {source.generation}")
    behind = [h.rank for h in source.holders if _is_behind(source, h.rank, h.former, h.copy, claims[h.rank])]
    if not behind:
        return None
    known = {(c.norm, c.loss_sum) for c in claims if c.agreed == source.step - 1 and c.generation == source.generation}
    if len(known) != 1:
        raise Retryable(
            f"ranks {sorted(set(behind))} are to finish step {source.step - 1}; its statistics are known as {sorted(known)}, "
            "which must be one"
        )
    ((norm, loss_sum),) = known
    return GlobalStats(loss_sum, norm)


def _is_behind(source: LiveSource, rank: int, former: int, copy: bool, claim: Claim) -> bool:
    shard = f"the {'copy' if copy else 'shard'} of rank {former} of generation {source.generation}"
    if (claim.generation, claim.ward if copy else claim.rank) != (source.generation, former):
        held = "nothing" if claim.rank == _NOTHING else f"rank {claim.rank:.0f} of generation {claim.generation:.0f}"
        raise NotHeld(f"rank {rank} is to hold {shard}, it holds {held}")
    if claim.step == source.step:
        return False
    if claim.step == source.step - 1 and claim.reduced:
        return True
    raise NotHeld(f"rank {rank} is to hold {shard} as before step {source.step}, it has step {claim.step:.0f}")


@dataclass(frozen=True, slots=True)
class Content:
    """Digests that a rank sends round: of the transfer list, of the content of its shard, and of its copy."""

    moves: int
    own: int
    copy: int
    fault: int = 0  # 1: messages did not match their manifests

    def row(self) -> list[float]:
        return [*halves(self.moves), *halves(self.own), *halves(self.copy), float(self.fault)]

    @classmethod
    def of(cls, row: Sequence[float]) -> Self:
        return cls(whole(*row[0:2]), whole(*row[2:4]), whole(*row[4:6]), int(row[6]))


def check_contents(source: LiveSource, contents: Sequence[Content]) -> int:
    """The content of the whole state. Raises Retryable where ranks differ on the list, or on what a shard contains."""
    others = [rank for rank, content in enumerate(contents) if content.moves != contents[0].moves]
    if others:
        raise Retryable(f"ranks {others} made another transfer list than rank 0")
    known: dict[int, tuple[int, int]] = {}
    for holder in source.holders:
        content = contents[holder.rank]
        found = holder.rank, content.copy if holder.copy else content.own
        first = known.setdefault(holder.former, found)
        if first[1] != found[1]:
            raise Retryable(
                f"ranks {first[0]} and {found[0]} hold different contents of the shard of rank {holder.former}"
            )
    return sum(content for _, content in known.values()) % (1 << 64)


def check_moved(total: int, contents: Sequence[Content], copies: bool) -> None:
    """The vote. Raises Retryable unless every message and the whole state arrived."""
    faulty = [rank for rank, content in enumerate(contents) if content.fault]
    if faulty:
        raise Retryable(f"ranks {faulty} received messages that do not match their manifests: the change is dropped")
    found = {"shards": sum(c.own for c in contents) % (1 << 64)}
    found |= {"copies": sum(c.copy for c in contents) % (1 << 64)} if copies else {}
    for what, content in found.items():
        if content != total:
            raise Retryable(
                f"the new {what} have content {content:016x}, the old ones {total:016x}: the change is dropped"
            )
