"""What an apply leaves in a status, and the patch that removes it."""

from __future__ import annotations

import pytest

from coxswain_operator.kubernetes.ownership import leftovers
from coxswain_operator.views import Manifest

APPLIED: Manifest = {
    "phase": "Running",
    "progress": {"step": 7, "rates": {"seen": 1}},
    "conditions": [{"type": "Ready"}],
}


@pytest.mark.parametrize(
    ("more", "patch"),
    [
        ({}, {}),
        ({"retries": 3}, {"retries": None}),
        ({"progress": {"step": 7, "rates": {"seen": 1}, "loss": 2.0}}, {"progress": {"loss": None}}),
        ({"progress": {"step": 7, "rates": {"seen": 1, "lost": 0}}}, {"progress": {"rates": {"lost": None}}}),
        ({"conditions": [{"type": "Ready"}, {"type": "OfAnother"}]}, {}),
        ({"phase": "Failed"}, {}),
        ({"progress": None}, {}),
    ],
    ids=["nothing", "a field", "a field within", "a field deep within", "a list", "a value", "an empty field"],
)
def test_what_is_stored_and_was_not_applied_is_removed_and_lists_and_values_stay(
    more: Manifest, patch: Manifest
) -> None:
    assert leftovers(APPLIED, APPLIED | more) == patch
