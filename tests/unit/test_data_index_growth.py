"""A source that grows while several loaders list it."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coxswain.config import MixConfig
from coxswain.errors import Refused
from coxswain_coordinator.index.merge import merge
from coxswain_link.store import open_store
from tests.unit.test_data_index import config, indexed


@pytest.mark.parametrize("format_", ["Jsonl", "Parquet"])
def test_a_file_that_appears_while_loaders_list_is_never_in_the_index_in_part(tmp_path, format_):
    """The loader of the first share lists it and has its first block, the other one began before and lacks its second."""
    store = open_store((tmp_path / "runs").as_uri(), create=True)
    folder, rows = tmp_path / "growing", [{"text": "x" * 290}, {"text": "y" * 250}]
    folder.mkdir()

    def add(name: str) -> None:
        if format_ == "Parquet":
            pq.write_table(pa.Table.from_pylist(rows), folder / name, row_group_size=1)
        else:
            (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    add("1")
    early = indexed(folder, store, 1, 2, format_=format_)
    mix = MixConfig(name="m", seed=1, sources=(config(folder, format_),))
    assert len(merge(mix, [indexed(folder, store, 0, 2, format_=format_), early]).sources[0].blocks) == 2
    add("2")
    late = indexed(folder, store, 0, 2, format_=format_)
    assert [block.path for block in late.blocks] == ["1", "2"]
    with pytest.raises(Refused, match="'mine': its loaders listed different objects"):
        merge(mix, [late, early])
