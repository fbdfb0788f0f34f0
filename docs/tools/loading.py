"""Tables of data loading beside its peers, from docs/results/loading.json to Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from docs.tools.layouts import table

Row = dict[str, Any]
NAMES = {
    "coxswain": "Coxswain, StreamDataset", "coxswain, services": "Coxswain, loaders and constructors of a job",
    "coxswain, services, large steps": "the same, steps of 8 times the tokens",
    "mosaic": "MosaicML Streaming", "litdata_chunks": "LitData", "grain_records": "Grain",
    "hugging_face": "Hugging Face datasets", "bare": "read and tokenize alone",
}  # fmt: skip
COSTS = {
    "first": "first batch, s", "tokens": "tokens/s", "cpu": "CPU, s a million tokens", "memory": "memory, MiB",
    "processes": "processes",
}  # fmt: skip
PREPARED = {"prepare": "before the first run, s", "written": "written, MiB"}


def tables(result: Row | None) -> str:
    """All of `bench/loading`; None: it has not been recorded."""
    if result is None:
        return "Not recorded yet: `make bench-loading`."
    f = result["figures"]
    return "\n\n".join([_costs(f["rows"]), _prepared(f["rows"]), _resumes(f["resumes"]), _origin(result)])


def medians(rows: Sequence[Row]) -> list[Row]:
    """The rounds of each case and system as one row, in the order of their first."""
    keys = dict.fromkeys((row["case"], row["system"]) for row in rows if "cpu" in row)
    return [_median([row for row in rows if (row["case"], row["system"]) == key]) for key in keys]


def _median(rounds: Sequence[Row]) -> Row:
    figures = {name: median(r[name] for r in rounds) for name in COSTS if name in rounds[0]}
    return {"case": rounds[0]["case"], "system": rounds[0]["system"], **figures}


def _costs(rows: Sequence[Row]) -> str:
    return table(_head(COSTS), [_cells(row, COSTS) for row in medians(rows)])


def _prepared(rows: Sequence[Row]) -> str:
    return table(_head(PREPARED), [_cells(row, PREPARED) for row in rows if "prepare" in row])


def _resumes(rows: Sequence[Row]) -> str:
    cases = [name for name in rows[0] if name != "system"]
    head = " | ".join(["goes on behind its own state, system", *cases])
    return table(head, [[NAMES[row["system"]], *(row[case] for case in cases)] for row in rows])


def _origin(result: Row) -> str:
    f = result["figures"]
    return (
        f"Printed by `{result['command']}`: medians of {f['rounds']} rounds of {f['batches']} batches of all ranks; "
        f"commit {result['commit']}, {result['recorded']}, {result['machine']}."
    )


def _head(columns: dict[str, str]) -> str:
    return " | ".join(["case | system", *columns.values()])


def _cells(row: Row, columns: dict[str, str]) -> list[str]:
    return [row["case"], NAMES[row["system"]], *(_number(row.get(name)) for name in columns)]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 or isinstance(value, int) else f"{value:.3g}"
