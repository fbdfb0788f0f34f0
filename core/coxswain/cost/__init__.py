"""The cost model: constants of machines and models, and the times that follow from them."""

from coxswain.cost.constants import Constants, constants_for, load_constants, peak_tflops
from coxswain.cost.model import CostModel

__all__ = ["Constants", "CostModel", "constants_for", "load_constants", "peak_tflops"]
