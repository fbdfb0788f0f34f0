"""Which optimizer settings each parameter has: the first group whose glob matches its name, else the optimizer's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from coxswain.config import OptimizerConfig, ParameterGroupConfig
from coxswain.holdings import ParameterSpec


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one parameter. `scale` multiplies the schedule's rate; `decay` is the decoupled weight decay."""

    scale: float
    decay: float


def settings_of(name: str, dimensions: int, config: OptimizerConfig) -> Settings:
    """Norms and biases (one dimension) do not decay unless their group says so."""
    usual = config.weight_decay if dimensions > 1 else 0.0
    group = group_of(name, config.groups)
    if group is None:
        return Settings(1.0, usual)
    return Settings(group.learning_rate_scale, usual if group.weight_decay is None else group.weight_decay)


def muon_matrices(specs: Iterable[ParameterSpec], config: OptimizerConfig) -> frozenset[str]:
    """The matrices within layers, which Muon updates as wholes. Embedding, head and norms stay with AdamW."""
    if config.kind != "Muon":
        return frozenset()
    return frozenset(spec.name for spec in specs if isinstance(spec.place, int) and len(spec.shape) == 2)


def group_of(name: str, groups: Iterable[ParameterGroupConfig]) -> ParameterGroupConfig | None:
    return next((group for group in groups if fnmatchcase(name, group.match)), None)


def idle_groups(groups: tuple[ParameterGroupConfig, ...], names: Iterable[str]) -> Mapping[int, str]:
    """Groups that decide for no parameter, by place, and why."""
    listed = list(names)
    used = {id(group_of(name, groups)) for name in listed}
    return {
        place: "matches only parameters that groups before it match"
        if any(fnmatchcase(name, group.match) for name in listed)
        else "matches no parameter of the model"
        for place, group in enumerate(groups)
        if id(group) not in used
    }
