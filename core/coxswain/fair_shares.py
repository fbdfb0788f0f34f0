"""Shares work among groups of ranks so that the highest load is as low as it can be.

Where replicas differ, equal shares of each part would not be equal loads: a rank that holds the whole model takes part in
every cell, one of two stages in half of them. Integers only: every rank must find the same shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_FINE = 1 << 16  # parts of an element in which shares are reckoned
_ROUNDS = 1000  # at most; disjoint sets of holders need two
WEIGHTS = 1 << 32  # about the sum of the weights of one set of holders

Holders = tuple[int, ...]


def balance(work: Iterable[tuple[int, Holders]], members: Sequence[int]) -> dict[Holders, list[int]]:
    """For each set of holding groups, the weight of one rank of each group. `members`: ranks of each group.

    Levels one set of holders after the other, which converges to the fairest loads (it descends in their sum of squares).
    """
    amounts: dict[Holders, int] = {}
    for amount, holders in work:
        amounts[holders] = amounts.get(holders, 0) + amount * _FINE
    shares = {holders: [0] * len(holders) for holders in amounts}
    loads = [0] * len(members)
    enough = sum(amounts.values()) // sum(members) // 1000
    for _ in range(_ROUNDS):
        if max((_level(shares[h], h, amount, loads, members) for h, amount in amounts.items()), default=0) <= enough:
            break
    return {h: _weights(shares[h], [members[group] for group in h]) for h in amounts}


def _level(shares: list[int], holders: Holders, amount: int, loads: list[int], members: Sequence[int]) -> int:
    """Shares the amount among its holders once more; returns the largest change of a rank's load."""
    before = list(shares)
    others = [loads[group] - share for group, share in zip(holders, shares, strict=True)]
    level = _height(amount, [(load, members[group]) for group, load in zip(holders, others, strict=True)])
    for place, (group, load) in enumerate(zip(holders, others, strict=True)):
        shares[place] = max(0, level - load)
        loads[group] = load + shares[place]
    return max(abs(a - b) for a, b in zip(before, shares, strict=True))


def _height(amount: int, vessels: Iterable[tuple[int, int]]) -> int:
    """The height up to which the amount fills vessels of (ground, width)."""
    filled = width = 0
    for ground, each in sorted(vessels):
        if width and amount + filled <= ground * width:
            break
        filled, width = filled + ground * each, width + each
    return (amount + filled) // width


def _weights(shares: Sequence[int], members: Sequence[int]) -> list[int]:
    """The shares in small integers; equal ones stay equal."""
    total = sum(share * each for share, each in zip(shares, members, strict=True))
    return [share * WEIGHTS // total for share in shares]
