"""`python -m docs.tools.tables`: writes the tables of docs/results into their pages. A test demands that they are current."""

from __future__ import annotations

from docs.tools import comparison, detection, failures, layouts, loading, measured, placement, simulated, strategy

ROOT = comparison.ROOT


def pages() -> dict[str, dict[str, str]]:
    """Page -> mark -> table."""
    systems, results = comparison.read(), measured.read()
    return {
        "README.md": {"comparison": comparison.short(systems), "measured": measured.table(results)},
        "docs/compare.md": {
            "comparison": comparison.full(systems), "measured": measured.table(results), "origins": measured.origins(results),
            "rivals": placement.rivals(results["balance"]),
        },
        "docs/parallelism.md": {
            "targets": placement.targets(results["balance"]), "planners": placement.planners(results["planner-speed"]),
        },
        "docs/design/strategy.md": {"strategy": strategy.table(results["strategy"])},
        "docs/design/loading.md": {"loading": loading.tables(results.get("loading"))},
        "docs/design/layouts.md": {"layouts": layouts.tables(results["layout"])},
        "docs/design/stragglers.md": {"stragglers": detection.tables(results["detect"])},
        "docs/design/simulate.md": {"simulated": simulated.tables(results.get("simulate"))},
        "docs/failures.md": {"failures": failures.tables(failures.read())},
    }  # fmt: skip


def into_page(text: str, mark: str, table: str) -> str:
    """The page with what stands between the two comments of that name replaced."""
    begin, end = f"<!-- {mark}: make generate -->", f"<!-- end of {mark} -->"
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"the page lacks {begin} … {end}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def generated() -> dict[str, str]:
    """Path -> content of each page with current tables."""
    found = {}
    for path, tables in pages().items():
        text = (ROOT / path).read_text()
        for mark, table in tables.items():
            text = into_page(text, mark, table)
        found[path] = text
    return found


def main() -> None:
    for path, content in generated().items():
        (ROOT / path).write_text(content)


if __name__ == "__main__":
    main()
