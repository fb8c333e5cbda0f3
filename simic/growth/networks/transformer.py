"""Causal transformers over tokens: pre-LN blocks, learned positions, output tied to the embedding."""

from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simic.errors import SimicError
from simic.growth.life.vocabulary import Stage
from simic.growth.networks.family import Anatomy, Shape, host_family
from simic.growth.networks.grafting import TokenGate
from simic.growth.networks.layers import (
    ATTENTION_HEADS,
    CausalAttention,
    Samplewise,
)
from simic.params import Host

# Width of each segment (all equal: the residual stream), whether blocks have attention, factor of their MLP.
# impaired: a model of byte pairs, because no block looks at another position; an attention seed lets it.
PRESETS = {
    "baseline": ((32,) * 3, True, 4),
    "deep": ((32,) * 5, True, 4),
    "impaired": ((16,) * 3, False, 2),
}


class Embedding(nn.Module):
    """Token plus learned position; int64 ``[B, L] → [B, L, D]``."""

    def __init__(self, tokens: int, context: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(tokens, width))
        self.positions = nn.Parameter(torch.randn(context, width))

    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.tokens) + self.positions[: x.shape[-1]]


class TransformerBlock(Samplewise):
    """x + attention(LN x), then x + W₂ gelu(W₁ LN x); ``[B, L, D]``."""

    def __init__(self, width: int, attention: bool, factor: int) -> None:
        super().__init__()
        self.attention = (
            nn.Sequential(nn.LayerNorm(width), CausalAttention(width)) if attention else None
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, factor * width),
            nn.GELU(),
            nn.Linear(factor * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        # Each part reads a normalised copy of the stream and adds to it (pre-LN).
        if self.attention is not None:
            x = x + self.attention(x)
        return x + self.mlp(x)


def first_segment(tokens: int, context: int, width: int, attention: bool, factor: int) -> nn.Module:
    """Build the embedding and the block behind it.

    Args:
        tokens: how many kinds of tokens.
        context: positions of a sequence, L.
        width: of the residual stream, D.
        attention: whether the block looks at other positions.
        factor: width of its MLP over D.
    """
    embedding = Embedding(tokens, context, width)
    block = TransformerBlock(width, attention, factor)
    return nn.Sequential(OrderedDict[str, nn.Module](embedding=embedding, block=block))


class TiedHead(nn.Module):
    """LN → logits by the embedding matrix; ``[B, L, D] → [B, L, tokens]``."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        # Alone it can be counted and tried; in a host the embedding's matrix takes its place.
        self.tokens = nn.Parameter(torch.randn(tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.norm(x), self.tokens)


@host_family(
    "transformer",
    presets=tuple(PRESETS),
    # Co-adaptation from BLENDING on, unlike convolutional hosts.
    isolated=frozenset({Stage.TRAINING}),
    gate=TokenGate,
)
def transformer(host: Host, input_shape: Shape, classes: int) -> Anatomy:
    """Build one block per segment.

    Args:
        host: its params; widths in place of the preset's, if any.
        input_shape: ``(L,)``, positions of a sequence.
        classes: how many kinds of tokens, which are also the logits.
    """
    preset_widths, has_attention, factor = PRESETS[host.preset]
    widths = host.widths or preset_widths
    width = widths[0]
    # The residual stream has one width, which the attention's heads share.
    if len(set(widths)) > 1 or width % ATTENTION_HEADS:
        raise SimicError(
            f"train.host.widths = {list(widths)}: a transformer's must all be equal and a multiple of {ATTENTION_HEADS}"
        )
    # The first segment embeds the tokens, and the head shares its matrix.
    context = input_shape[0]
    first = partial(first_segment, classes, context, width, has_attention, factor)
    return Anatomy(
        segments=(
            first,
            *(partial(TransformerBlock, width, has_attention, factor) for _ in widths[1:]),
        ),
        head=partial(TiedHead, classes, width),
        slot_shapes=((context, width),) * len(widths),
        config=host.model_copy(update={"widths": widths}),
        features_last=True,
        tied={"tokens": "embedding.tokens"},
    )
