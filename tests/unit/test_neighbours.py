"""Which ranks exchange activations: what one expects from another, that one sends, whatever the degrees of both stages."""

from __future__ import annotations

from hypothesis import given

from coxswain.layout import Layout
from coxswain.neighbours import neighbours_of, rank_of
from tests.unit.test_holdings import layouts


@given(layouts())
def test_every_rank_is_sent_what_it_waits_for_and_nothing_else(layout: Layout) -> None:
    found = [neighbours_of(layout, seat) for seat in layout.ranks()]
    inputs = {(n.input_from, rank) for rank, n in enumerate(found) if n.input_from is not None}
    gradients = {(n.gradient_from, rank) for rank, n in enumerate(found) if n.gradient_from is not None}
    assert {(rank, to) for rank, n in enumerate(found) for to in n.output_to} == inputs
    assert {(rank, to) for rank, n in enumerate(found) for to in n.gradient_to} == gradients


@given(layouts())
def test_a_rank_takes_from_the_tensor_rank_of_its_own_number_modulo_the_senders_degree(layout: Layout) -> None:
    ranks = rank_of(layout)
    for seat in layout.ranks():
        stages, mine = layout.replicas[seat.replica].stages, neighbours_of(layout, seat)
        for stage, sender in ((seat.stage - 1, mine.input_from), (seat.stage + 1, mine.gradient_from)):
            if 0 <= stage < len(stages):
                assert sender == ranks[seat.replica, stage, seat.tensor % len(stages[stage].devices)]
            else:
                assert sender is None
