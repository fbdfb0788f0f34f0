"""A model of one's own: a decoder in the manner of GPT-2, with learned positions, LayerNorm, GELU and biases.

`examples/gpt2.yaml` names it as `gpt2:GPT2`. Write `forward` of a layer for tokens in a row, without a batch dimension, and leave
attention to `attend`: it knows where documents begin, and which of them are a ring over several trainers.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from coxswain.config import ModelConfig
from coxswain.holdings import ParameterSpec
from coxswain_train.model.custom import CustomDecoder
from coxswain_train.model.llama import AttentionFn, Rotary
from coxswain_train.model.loss import linear_cross_entropy


class Block(nn.Module):
    """One layer: attention and a feed-forward block, each behind a LayerNorm."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_c_proj = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor, rotary: Rotary, attend: AttentionFn) -> Tensor:
        """`attend` takes and gives [heads, tokens, size]."""
        query, key, value = self.c_attn(self.ln_1(x)).unflatten(-1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        x = x + self.attn_c_proj(attend(query, key, value).transpose(0, 1).flatten(1))
        out: Tensor = x + self.mlp_c_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))
        return out


class GPT2(CustomDecoder):
    """`context` is the number of learned positions: at least the job's maxSequenceTokens."""

    def __init__(self, model: ModelConfig, vocabulary: int, context: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, model.hidden), nn.Embedding(context, model.hidden)
        self.h = nn.ModuleList(Block(model.hidden, model.heads, model.feed_forward) for _ in range(model.layers))
        self.ln_f = nn.LayerNorm(model.hidden)

    @property
    def stack(self) -> Sequence[nn.Module]:
        return list(self.h)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        out: Tensor = self.wte(tokens) + self.wpe(positions)
        return out

    def token_losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        return linear_cross_entropy(self.ln_f(hidden), self.wte.weight, labels)

    @staticmethod
    def parameter_specs(model: ModelConfig, vocabulary: int, context: int) -> list[ParameterSpec]:
        """Name, shape and place (its layer, or an end of the model) of every weight. All that is one-dimensional begins at one,
        biases at zero, the rest at random."""
        width, inner = model.hidden, model.feed_forward
        layer = {
            "ln_1.weight": (width,), "ln_1.bias": (width,), "ln_2.weight": (width,), "ln_2.bias": (width,),
            "c_attn.weight": (3 * width, width), "c_attn.bias": (3 * width,),
            "attn_c_proj.weight": (width, width), "attn_c_proj.bias": (width,),
            "c_fc.weight": (inner, width), "c_fc.bias": (inner,),
            "mlp_c_proj.weight": (width, inner), "mlp_c_proj.bias": (width,),
        }  # fmt: skip
        layers = [
            ParameterSpec(f"h.{i}.{name}", shape, i) for i in range(model.layers) for name, shape in layer.items()
        ]
        first = [
            ParameterSpec("wte.weight", (vocabulary, width), "ends"),
            ParameterSpec("wpe.weight", (context, width), "first"),
        ]
        return [*first, *layers, *(ParameterSpec(f"ln_f.{name}", (width,), "last") for name in ("weight", "bias"))]
