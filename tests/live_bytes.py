"""`LiveBytes`: the bytes of tensors made within it that exist now, and the most that ever did. For one thread, on the CPU."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts each storage once, from the operator that makes it to its end. `calls`: operators so far."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.calls = 0
        self._seen: dict[int, weakref.finalize[..., Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {id(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        for tensor in (x for x in tree_leaves(out) if isinstance(x, Tensor)):
            storage = tensor.untyped_storage()
            if id(storage) not in before and id(storage) not in self._seen:
                self._begin(id(storage), storage)
        return out

    def _begin(self, key: int, storage: Any) -> None:
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        self._seen[key] = weakref.finalize(storage, self._end, key, size)

    def _end(self, key: int, size: int) -> None:
        self.now -= size
        del self._seen[key]
