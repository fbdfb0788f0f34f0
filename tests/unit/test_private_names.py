"""What the lint of private names finds in a test, and what it leaves alone."""

from __future__ import annotations

import pytest

from tests.private_names import reached

FOUND = {
    "from coxswain_link.store import _piece": "coxswain_link.store._piece",
    "log._kept": "log._kept",
    "self.driver._plans": "self.driver._plans",
    "made()._plans.clear()": "made()._plans",
    "getattr(log, '_kept')": "_kept",
    "monkeypatch.setattr(store, '_piece', 3)": "_piece",
    "monkeypatch.setattr(store, 'PIECE', 3)": "PIECE",
    "monkeypatch.setattr('coxswain_link.store.PIECE_BYTES', 3)": "coxswain_link.store.PIECE_BYTES",
    "mock.patch('coxswain_link.store._piece')": "coxswain_link.store._piece",
}
LEFT = (
    "from coxswain_link.store import piece",
    "log.kept",
    "log.__dict__",
    "self._plans",
    "def _piece(): ...\nstore._piece",
    "class Log:\n    def __init__(self): self._kept = 1\nLog()._kept",
    "plan._replace(step=3)",
    "torch._C._debug",
    "getattr(log, 'PIECE')",
    "monkeypatch.setattr(store, 'piece', 3)",
    "monkeypatch.setattr('kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION', 'none')",
    "_ = 3\nfor _ in log: ...",
)


@pytest.mark.parametrize("text", FOUND)
def test_a_private_name_of_another_file_or_a_constant_that_is_replaced_is_found(text):
    assert reached(text) == [(1, FOUND[text])]


@pytest.mark.parametrize("text", LEFT)
def test_public_names_the_files_own_and_those_of_other_packages_are_left_alone(text):
    assert reached(text) == []


def test_a_file_is_listed_by_line():
    assert reached("a._one\nb._two\na._one") == [(1, "a._one"), (2, "b._two"), (3, "a._one")]
