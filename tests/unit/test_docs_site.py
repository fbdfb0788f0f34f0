"""The site of the documentation builds without a warning, and is read without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.tools import site_hooks as site
from tests.browser import BROWSER, browser
from tests.local.jobs import wait_until

ROOT = site.ROOT
# What a browser would fetch to show a page; a link to click is none of these.
FETCHES = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")
STYLE_FETCHES = re.compile(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The site, built as `make docs` does it: warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_of_the_checkout_has_its_place_in_the_site(built: Path) -> None:
    pages = [*site.TOP, *(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md"))]
    assert [p for p in pages if not (built / site.uri_of(p)).with_suffix(".html").is_file()] == []


def test_a_page_loads_nothing_from_elsewhere(built: Path) -> None:
    pages = {page: page.read_text() for page in built.rglob("*.html")}
    # rel=canonical and the like name an address and load nothing
    loaded = {str(p): [u for u in FETCHES.findall(text) if "canonical" not in u] for p, text in pages.items()}
    assert {p: urls for p, urls in loaded.items() if urls} == {}


def test_a_style_loads_nothing_from_elsewhere(built: Path) -> None:
    styles = {str(p): STYLE_FETCHES.findall(p.read_text()) for p in built.rglob("*.css")}
    assert styles
    assert {p: urls for p, urls in styles.items() if urls} == {}


def test_the_search_knows_the_words_of_the_glossary(built: Path) -> None:
    text = (built / "search" / "search_index.json").read_text()
    assert "glossary.html" in text
    assert "delivered digest" in text


def test_a_linked_source_file_becomes_a_page_with_that_source(built: Path) -> None:
    (page,) = (built / "source" / "core" / "coxswain" / "membership").glob("draw*.html")
    assert "def " in re.sub(r"<[^>]+>", "", page.read_text())


@pytest.mark.skipif(not BROWSER, reason="this machine has no browser")
def test_the_search_answers_in_a_site_that_is_opened_from_a_folder(built: Path) -> None:
    ask = "document.querySelector('.md-search__input').focus(); document.execCommand('insertText', false, 'cursor')"
    answers = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.getAttribute('href')).join(' ')"
    with browser() as page:
        page.open((built / "index.html").as_uri(), width=1200)
        page.evaluate(ask)
        assert "glossary.html" in wait_until(lambda: page.evaluate(answers), "answers of the search")


@pytest.mark.parametrize(
    ("path", "link", "becomes"),
    [
        ("README.md", "docs/data.md", "data.md"),
        ("README.md", "docs/pictures/run.svg", "pictures/run.svg"),
        ("docs/compare.md", "../README.md", "index.md"),
        ("docs/design/engine.md", "../data.md#the-mix", "../data.md#the-mix"),
        ("docs/install.md", "../Dockerfile", "source/Dockerfile.md"),
        ("docs/install.md", "../charts/coxswain/README.md", "source/charts/coxswain/README.md"),
        ("charts/coxswain/README.md", "../../docs/install.md", "../../../install.md"),
        ("README.md", "https://example.com/a.md", "https://example.com/a.md"),
        ("README.md", "docs/none.md", "docs/none.md"),
    ],
)
def test_a_link_leads_to_the_same_file_within_the_site(path: str, link: str, becomes: str) -> None:
    assert site.relinked(f"[text]({link})", path) == f"[text]({becomes})"


@pytest.mark.parametrize("path", ["README.md", "docs/data.md", "Dockerfile", "charts/coxswain/README.md"])
def test_a_place_in_the_site_leads_back_to_its_file(path: str) -> None:
    assert site.path_of(site.uri_of(path)) == path
