"""The cost model: constants of machines and models, and the times and bytes that follow from them.

`CostModel` is in `coxswain.cost.model`: it needs numpy, which the operator does not import.
"""

from coxswain.cost.constants import Constants, constants_for, load_constants, peak_tflops

__all__ = ["Constants", "constants_for", "load_constants", "peak_tflops"]
