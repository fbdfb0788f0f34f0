"""Images are named after what they are made from, and where packages come from reaches the build as a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.images.base import Mirror, first_mirror
from e2e.images.buildah import BuildFailed
from e2e.images.recipe import COMMON, RECIPES, tag
from e2e.images.registry import assignments, pip_settings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with one file for each that a recipe names."""
    for name in COMMON:
        (tmp_path / name).write_text(name)
    for name in {source for recipe in RECIPES.values() for source in recipe.sources}:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "module.py").write_text(name)
    return tmp_path


def test_a_change_of_its_sources_renames_an_image_and_leaves_the_others_names(root: Path) -> None:
    before = {name: tag(recipe, "base", root) for name, recipe in RECIPES.items()}
    (root / "operator/coxswain_operator/module.py").write_text("changed")
    changed = {name for name, recipe in RECIPES.items() if tag(recipe, "base", root) != before[name]}
    assert changed == {"operator"}


def test_another_base_or_another_set_of_packages_renames_an_image(root: Path) -> None:
    assert tag(RECIPES["train"], "base", root) != tag(RECIPES["train"], "other", root)
    assert tag(RECIPES["train"], "base", root) != tag(RECIPES["train-slim"], "base", root)


def test_bytecode_and_caches_name_nothing(root: Path) -> None:
    before = tag(RECIPES["data"], "base", root)
    cache = root / "core/coxswain/__pycache__"
    cache.mkdir()
    (cache / "module.pyc").write_text("anything")
    assert tag(RECIPES["data"], "base", root) == before


def test_the_base_is_made_of_the_release_and_not_of_its_updates() -> None:
    lines = (
        "http://m/debian/ bookworm-updates main\nhttp://m/debian/ bookworm contrib\nhttp://m/debian/ bookworm main\n"
    )
    assert first_mirror(lines) == Mirror("http://m/debian/", "bookworm")


def test_a_machine_whose_apt_knows_no_release_says_so() -> None:
    with pytest.raises(BuildFailed, match="no release with a component main"):
        first_mirror("")


def test_the_index_of_the_machine_reaches_pip_and_uv_quoted_for_a_shell() -> None:
    settings = pip_settings(
        "global.index-url='https://one/simple'\n:env:.index-url='https://two/simple?a=b&c'\nglobal.cert='x'\n"
    )
    assert assignments(settings, {"HOME": "/root", "https_proxy": "http://proxy"}).splitlines() == [
        "PIP_INDEX_URL='https://two/simple?a=b&c'", "UV_DEFAULT_INDEX='https://two/simple?a=b&c'", "https_proxy=http://proxy",
    ]  # fmt: skip
