"""Mixed-integer programs through HiGHS, limited by counts so that the same program has the same answer everywhere.

HiGHS is imported at the first program, so only the planners that need it load it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


GAP = 0.005  # an answer this close to its bound is good enough


class Budget(NamedTuple):
    """What one program may use: branch-and-bound nodes, and looks of HiGHS at its limits, one or more a linear program.

    Both are counts. `seconds` only where a person asks: with it the same program may have another answer.
    """

    nodes: int
    looks: int
    seconds: float = float("inf")


@dataclass(slots=True)
class Program:
    """Minimises cost x, subject to rows and bounds; all columns are integers but those named in `real`."""

    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    real: set[int] = field(default_factory=set)
    rows: list[tuple[list[int], list[float], float, float]] = field(default_factory=list)  # columns, factors, bounds

    def column(self, upper: float, cost: float = 0.0, real: bool = False) -> int:
        """Adds a column from 0 to `upper` and returns its number."""
        self.cost.append(cost)
        self.upper.append(upper)
        if real:
            self.real.add(len(self.cost) - 1)
        return len(self.cost) - 1

    def row(self, terms: list[tuple[int, float]], low: float, high: float) -> None:
        self.rows.append(([c for c, _ in terms], [f for _, f in terms], low, high))


def solve(program: Program, start: Floats | None, budget: Budget) -> Floats | None:
    """Returns the best point found, None where there is none within the budget. `start`: a point to begin with."""
    highspy: Any = import_module("highspy")
    solver = highspy.Highs()
    for name, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 0),
        ("mip_max_nodes", budget.nodes),
        ("mip_rel_gap", GAP),
        ("time_limit", budget.seconds),
    ):
        solver.setOptionValue(name, value)
    solver.passModel(_model(highspy, program))
    if start is not None:
        solver.setSolution(start.size, np.arange(start.size, dtype=np.int32), start)
    solver.setCallback(_limit(budget.looks), None)
    solver.startCallback(highspy.cb.HighsCallbackType.kCallbackMipInterrupt)
    solver.run()
    found = solver.getSolution()
    feasible = solver.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    return np.asarray(found.col_value) if feasible else None


def _limit(looks: int) -> Any:
    count = iter(range(looks))

    def interrupt(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        into.user_interrupt = next(count, None) is None

    return interrupt


def _model(highspy: Any, program: Program) -> Any:
    columns, rows = len(program.cost), program.rows
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns, len(rows)
    model.col_cost_, model.col_lower_ = np.array(program.cost), np.zeros(columns)
    model.col_upper_ = np.array(program.upper)
    model.row_lower_, model.row_upper_ = (np.array([row[k] for row in rows]) for k in (2, 3))
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.cumsum([0, *(len(row[0]) for row in rows)])
    model.a_matrix_.index_ = np.concatenate([row[0] for row in rows])
    model.a_matrix_.value_ = np.concatenate([row[1] for row in rows])
    integer, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    model.integrality_ = [real if c in program.real else integer for c in range(columns)]
    return model
