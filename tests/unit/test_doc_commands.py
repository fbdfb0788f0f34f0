"""Commands that the tests on kubelets take from pages: found here, before a cluster is started for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.cluster.process import REPOSITORY
from e2e.doc_commands import command

_PAGE = re.compile(r'^PAGE = "(.+)"', re.MULTILINE)
_TAKEN = re.compile(r"""(?:command\((PAGE|"[^"]+"), |typed\(job, )["']([^"']+)["']""")


def taken(file: Path) -> list[tuple[str, str]]:
    """Page and beginning of each command that a file of tests names."""
    text = file.read_text()
    own = "".join(_PAGE.findall(text))
    return [(page.strip('"') if page not in ("", "PAGE") else own, start) for page, start in _TAKEN.findall(text)]


TAKEN = sorted({t for file in (REPOSITORY / "e2e").glob("test_*.py") for t in taken(file)})


def test_the_tests_on_kubelets_take_commands_from_pages():
    assert len(TAKEN) >= 12


@pytest.mark.parametrize(("page", "beginning"), TAKEN)
def test_a_page_has_the_one_command_that_a_test_on_kubelets_runs(page: str, beginning: str):
    assert command(page, beginning).startswith(beginning)
