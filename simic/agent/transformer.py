"""A transformer as memory: attention over the last L steps of an episode (GTrXL, Parisotto et al. 2020, arXiv 1910.06764).

One block: what was heard and what the network makes of it each pass a gate of the GRU's form, which begins nearly
closed. Keys and values of earlier steps are cached, so a step computes one of each; and no step waits for the one
before it, so whole rows are a single call.
"""

from math import gcd

import torch
from torch import Tensor, nn
from torch.nn import functional

MOST_HEADS = 4


class GatedTransformer(nn.Module):
    """A block of attention and a network, both gated; the gates' weights serve as output layers of both.

    Args:
        inputs: Width of what enters.
        units: Width of what leaves. There are four heads of attention, or as many as divide it and four.
        window: L, the steps that are seen, the present one included.
    """

    def __init__(self, inputs: int, units: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.heads = gcd(units, MOST_HEADS)
        self.cached = (window - 1, 2 * units)  # keys and values of earlier steps
        self.embed = nn.Linear(inputs, units)
        self.attention_norm = nn.LayerNorm(units)
        self.projection = nn.Linear(units, 3 * units, bias=False)
        # Added to the scores by distance, the farthest first (as in T5, Raffel et al. 2020, arXiv 1910.10683).
        self.distance = nn.Parameter(torch.zeros(self.heads, window))
        self.attention_gate = nn.GRUCell(units, units)
        self.network_norm = nn.LayerNorm(units)
        self.network = nn.Linear(units, 2 * units)
        self.network_gate = nn.GRUCell(2 * units, units)

    def forward(
        self, x: Tensor, cache: Tensor, count: Tensor, starts: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Take in T steps of N rows.

        Args:
            x: ``[T, N, D]``.
            cache: Keys and values of the last L − 1 steps, the latest last, ``[N, (L − 1) 2 H]``.
            count: How many of these are of the running episode, ``[N, 1]``.
            starts: First steps of episodes, bool ``[T, N]``; None: no episode starts inside.

        Returns:
            The output ``[T, N, H]``, and what is cached afterwards and its count, if no episode started inside.
        """
        steps = len(x)
        x = self.embed(x).transpose(0, 1)  # [N, T, H]
        queries, news = self.projection(self.attention_norm(x)).tensor_split([x.shape[-1]], dim=-1)
        memory = torch.cat((cache.unflatten(-1, self.cached), news), dim=1)
        # The first step that each step remembers: where its episode began, or before the first row.
        begin = (-count).expand(-1, steps)
        if starts is not None:
            time = torch.arange(steps, device=x.device)
            begin = torch.where(starts.t(), time, begin).cummax(dim=1).values
        x = _gated(self.attention_gate, self._attention(queries, memory, begin), x)
        x = _gated(self.network_gate, self.network(self.network_norm(x)).relu(), x)
        count = (count + steps).clamp(max=self.window - 1)
        return x.transpose(0, 1), memory[:, steps:].flatten(1), count

    def _attention(self, queries: Tensor, memory: Tensor, begin: Tensor) -> Tensor:
        """Attend to what is remembered.

        Args:
            queries: ``[N, T, H]``.
            memory: Keys and values, from L − 1 steps before the first query on, ``[N, L − 1 + T, 2 H]``.
            begin: The first step that each query may look at, counted from the first query, ``[N, T]``.
        """
        # Rows are cut into blocks of queries, each beside the keys it may reach: [N, blocks, heads, …]. Time and memory
        # grow with T L and not with T².
        steps = queries.shape[1]
        block = min(steps, self.window)
        reach = self.window - 1 + block
        padding = -steps % block
        queries = functional.pad(queries, (0, 0, 0, padding)).unflatten(1, (-1, block))
        queries = queries.unflatten(-1, (self.heads, -1)).transpose(2, 3)
        memory = functional.pad(memory, (0, 0, 0, padding)).unfold(1, reach, block)
        keys, values = memory.unflatten(2, (2, self.heads, -1)).unbind(dim=2)

        # Row t of a block sees keys t … t + L − 1, and of these the ones of its episode. A row of weights by distance
        # and as many −∞ as make the next row begin one key later.
        rows = functional.pad(self.distance, (0, block), value=-torch.inf).repeat(1, block)
        band = rows[:, :-block].view(self.heads, block, reach)
        time = torch.arange(1 - self.window, steps + padding, device=queries.device)
        begin = functional.pad(begin, (0, padding)).unflatten(1, (-1, block))
        is_known = time.unfold(0, reach, block)[:, None] >= begin[..., None]
        scores = queries @ keys * queries.shape[-1] ** -0.5 + band
        weights = scores.masked_fill(~is_known[:, :, None], -torch.inf).softmax(dim=-1)
        heard = (weights @ values.mT).transpose(2, 3)  # [N, blocks, block, heads, ·]
        return heard.flatten(3).flatten(1, 2)[:, :steps]


def _gated(gate: nn.GRUCell, news: Tensor, x: Tensor) -> Tensor:
    """Let news into x ``[N, T, ·]`` as a gated recurrent unit lets inputs into its memory."""
    return gate(news.flatten(0, 1), x.flatten(0, 1)).view_as(x)
