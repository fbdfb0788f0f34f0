"""One draw from one source: what its cursor counts, and the way behind the last pass of a source of which all is dropped."""

from __future__ import annotations

import pytest

from coxswain.membership.draw import draw
from coxswain.membership.values import SourceCursor

LENGTHS = (30, 4, 25, 7)
LONGEST = 10


def at(epoch: int, n: int) -> tuple[int, int]:
    return n, LENGTHS[n]


@pytest.mark.parametrize("policy", ["Split", "Truncate", "Drop"])
def test_a_cursor_counts_the_samples_that_it_has_passed_and_the_tokens_that_it_has_drawn(policy):
    cursor, tokens = SourceCursor("code"), 0
    for _ in range(40):
        sequence, cursor = draw(cursor, len(LENGTHS), 3, at, LONGEST, policy)
        tokens += sequence.tokens if sequence else 0
        assert cursor.total_samples == cursor.epoch * len(LENGTHS) + cursor.drawn
        assert (cursor.total_tokens, cursor.tokens) == (tokens, tokens)
        if cursor.exhausted:
            break
    assert cursor.exhausted
    assert cursor.total_samples == 3 * len(LENGTHS)


@pytest.mark.parametrize("drawn", [0, 1, 2, 3])
def test_a_source_of_which_all_is_dropped_ends_where_the_walk_over_it_ends(drawn):
    """The walk takes minutes where there are millions of samples."""
    before = SourceCursor("code", epoch=1, drawn=drawn, total_samples=4 + drawn, tokens=9, total_tokens=9)

    def too_long(epoch: int, n: int) -> tuple[int, int]:
        return n, 99

    quick = draw(before, 4, 2, too_long, LONGEST, "Drop", shortest=99)
    assert quick == draw(before, 4, 2, too_long, LONGEST, "Drop")
    assert (quick[0], quick[1].exhausted, quick[1].total_samples) == (None, True, 8)
