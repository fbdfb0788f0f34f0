"""What it takes that neighbours in a ring exchange heads for tokens, and when they do (see `Task.ulysses`).

A member sends (u - 1) / u of its queries, keys, values and outputs once forward, and of their gradients once backward. No
compute hides that. In return keys travel between D / u groups alone, and each of so many steps attends to u times the
tokens with 1 / u of the heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Literal

from coxswain.cost.memory import Recompute
from coxswain.cost.recompute import exchanges, passes

Attention = Literal["Ring", "Ulysses", "Auto"]  # how members of a ring share it, by policy

MOST = 8  # members of a head group: each rank sends to all others of its group


@dataclass(frozen=True, slots=True)
class HeadExchange:
    """Which rings exchange heads. Ulysses: among as many neighbours as heads allow. Auto: among the number that is fastest.

    `key_heads`: those that every device has. `queries`: query heads a key head. `node`: replicas of a node, so neighbours of
    a head group of at most so many may share one. `recompute`: repeats exchanges.
    """

    choice: Literal["Ulysses", "Auto"]
    key_heads: int
    queries: float
    node: int = 1
    recompute: Recompute = "None"

    @property
    def sizes(self) -> list[int]:
        """Members that a head group may have, 1 (no exchange) among them, rising."""
        return [u for u in range(1, MOST + 1) if self.key_heads % u == 0]

    def of(self, degree: int) -> list[int]:
        """The sizes that a ring of this degree may take."""
        found = [u for u in self.sizes if degree % u == 0]
        return found[-1:] if self.choice == "Ulysses" else found

    @property
    def per_key_byte(self) -> float:
        """Bytes that are exchanged, for each byte of keys and values that a ring passes on.

        A ring moves keys and values three times: forward, backward, and their gradients. Exchanges move them twice, and
        queries with outputs twice, each as wide as all query heads. What recompute repeats is added on both sides.
        """
        return exchanges(self.recompute) * (1 + self.queries) / passes(self.recompute)


def key_heads_of(kv_heads: int, degrees: list[int]) -> int:
    """Key heads that every device can share, of tensor groups of these degrees: the greatest number that divides all."""
    return gcd(*(max(1, kv_heads // degree) for degree in degrees))
