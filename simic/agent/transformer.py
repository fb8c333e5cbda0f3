"""A transformer as memory: attention over the last L steps of an episode.

A block of GTrXL (Parisotto et al. 2020, arXiv 1910.06764): what is attended to, and what a network makes of it, each
pass a gate of the GRU's form that begins nearly closed. Keys and values of earlier steps are cached, so that a step
computes one of each; no step waits for the one before it, so that whole rows are a single call.
"""

from math import gcd

import torch
from torch import Tensor, nn
from torch.nn import functional

MOST_HEADS = 4


class GatedTransformer(nn.Module):
    """A block of attention and of a network; the weights of the gates serve as last layers of both.

    Args:
        inputs: Width of what enters.
        units: H, the width of what leaves. Attention has four heads, or as many as divide both four and H.
        window: L, the steps that are seen, the present one included.
    """

    def __init__(self, inputs: int, units: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.heads = gcd(units, MOST_HEADS)
        self.embed = nn.Linear(inputs, units)
        # Queries, keys and values.
        self.attention_norm = nn.LayerNorm(units)
        self.projection = nn.Linear(units, 3 * units, bias=False)
        # Added to the scores by distance, the farthest first (as in T5, Raffel et al. 2020, arXiv 1910.10683).
        self.distance = nn.Parameter(torch.zeros(self.heads, window))
        self.attention_gate = nn.GRUCell(units, units)
        self.network_norm = nn.LayerNorm(units)
        self.network = nn.Linear(units, 2 * units)
        self.network_gate = nn.GRUCell(2 * units, units)

    def forward(
        self,
        x: Tensor,
        cache: Tensor,
        count: Tensor,
        starts: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Take in T steps of N rows.

        Args:
            x: ``[T, N, D]``.
            cache: Keys and values of the last L steps, the latest last, ``[N, L 2 H]``.
            count: How many of these are of the running episode, ``[N, 1]``.
            starts: First steps of episodes, bool ``[T, N]``; None: no episode starts inside.

        Returns:
            The output ``[T, N, H]``; cache and count after the last step, if no episode started inside.
        """
        # Whole blocks of at most L steps, the last one filled up with steps that nobody reads.
        steps = x.shape[0]
        blocks = -(-steps // self.window)
        padding = -steps % blocks
        x = self.embed(x).transpose(0, 1)
        x = functional.pad(x, (0, 0, 0, padding))  # [N, T, H]

        # The first step that each step may see: that of its episode, or one before the row.
        begin = -count.expand(-1, x.shape[1])
        if starts is not None:
            time = torch.arange(x.shape[1], device=x.device)
            starts = functional.pad(starts.t(), (0, padding))
            begin = torch.where(starts, time, begin)
            begin = begin.cummax(dim=1).values
        mask = self._mask(begin.unflatten(1, (blocks, -1)))

        # The attention's part, then the network's.
        projection = self.projection(self.attention_norm(x))
        queries, news = projection.tensor_split([x.shape[-1]], dim=-1)
        earlier = cache.unflatten(-1, (self.window, -1))[:, 1:]
        memory = torch.cat((earlier, news), dim=1)
        mixed = self._attend(queries, memory, mask)
        x = _gated(self.attention_gate, mixed, x)
        hidden = self.network(self.network_norm(x)).relu()
        x = _gated(self.network_gate, hidden, x)

        cache = memory.narrow(1, steps - 1, self.window).flatten(1)
        count = (count + steps).clamp(max=self.window)
        return x[:, :steps].transpose(0, 1), cache, count

    def _mask(self, begin: Tensor) -> Tensor:
        """Compute what is added to the scores of a block: −∞ for keys that a step does not see.

        Args:
            begin: The first step that each step may see, counted from the first of the row, ``[N, blocks, block]``.

        Returns:
            ``[N blocks, heads, block, keys]``; the keys of a block begin L − 1 steps before it.
        """
        blocks, block = begin.shape[1:]
        keys = self.window - 1 + block
        # Step t of a block sees keys t … t + L − 1: each row of the band is the one before, moved by a key.
        row = functional.pad(self.distance, (0, block), value=-torch.inf)
        rows = row.repeat(1, block)[:, :-block]
        band = rows.view(self.heads, block, keys)
        # Of these it sees the ones of its episode.
        time = torch.arange(
            1 - self.window,
            blocks * block,
            device=begin.device,
        )
        time = time.unfold(0, keys, block)
        is_hidden = time[:, None] < begin[..., None]
        return band.masked_fill(is_hidden.flatten(0, 1)[:, None], -torch.inf)

    def _attend(
        self,
        queries: Tensor,
        memory: Tensor,
        mask: Tensor,
    ) -> Tensor:
        """Mix the values that each step sees. Time and memory grow with T L, not with T².

        Args:
            queries: ``[N, T, H]``.
            memory: Keys and values, from L − 1 steps before the first query on, ``[N, L − 1 + T, 2 H]``.
            mask: Is added to the scores, ``[N blocks, heads, block, keys]``.
        """
        # Blocks of all rows are one batch.
        block, keys = mask.shape[2:]
        per_head = (self.heads, queries.shape[2] // self.heads)
        by_block = queries.view(-1, block, *per_head)
        memory = memory.unfold(1, keys, block).flatten(0, 1)
        memory = memory.unflatten(1, (2, *per_head)).mT
        mixed = functional.scaled_dot_product_attention(
            by_block.transpose(1, 2),
            memory[:, 0],
            memory[:, 1],
            attn_mask=mask,
        )
        return mixed.transpose(1, 2).reshape(queries.shape)


def _gated(
    gate: nn.GRUCell,
    news: Tensor,
    x: Tensor,
) -> Tensor:
    """Let news into x ``[N, T, ·]`` as a gated recurrent unit lets inputs into its memory."""
    return gate(news.flatten(0, 1), x.flatten(0, 1)).view_as(x)
