"""Write scikit-learn's fitted models as torch modules: saved as programs they need neither pickle nor scikit-learn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from simic.data.raw_inputs import InputEncoder, look_up
from simic.growth.grown_network import FittedStructure, Product

MOST_BITS = 32


class FittedModel(Product):
    """A model of scikit-learn's: logits ``[B, classes]`` of samples as its structure says.

    Args:
        structure: What it takes.
        scores: Computes the scores of some classes from flat samples.
        labels: Which classes these are, int64; the logits of all others are -inf.
        is_standardised: It was fitted to standardised samples, not to raw ones.
    """

    def __init__(
        self,
        structure: FittedStructure,
        scores: nn.Module,
        labels: Any,
        is_standardised: bool,
    ) -> None:
        super().__init__()
        self.structure: FittedStructure = structure
        encodes = is_standardised and structure.inputs is not None
        self.inputs = InputEncoder(structure.inputs) if encodes and structure.inputs else None
        self.scores = scores
        self.register_buffer("labels", torch.tensor(labels), persistent=False)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x if self.inputs is None else self.inputs(x))

    def body(self, x: Tensor) -> Tensor:
        """Compute logits of the samples that the model was fitted to."""
        scores = self.scores(x.flatten(1))
        # One score decides between two classes.
        if scores.shape[1] == 1:
            scores = torch.cat((torch.zeros_like(scores), scores), 1)
        logits = scores.new_full((scores.shape[0], self.structure.classes), -torch.inf)
        return logits.index_copy(1, self.get_buffer("labels"), scores)


class LinearScores(nn.Module):
    """The scores of a fitted LogisticRegression."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        # Scikit-learn's may be turned or part of a larger one, of which torch warns when it is written.
        self.register_buffer("weight", torch.tensor(model.coef_).contiguous())
        self.register_buffer("bias", torch.tensor(model.intercept_))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.get_buffer("weight")
        return nn.functional.linear(x.to(weight.dtype), weight, self.get_buffer("bias"))


class TreeScores(nn.Module):
    """The scores of a fitted HistGradientBoostingClassifier, of features ``[B, F]`` in the order of its trees."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        # Scikit-learn publishes no other view of its trees; whoever builds this compares the answers.
        iterations: Any = vars(model)["_predictors"]
        trees = [tree for iteration in iterations for tree in iteration]
        # The nodes of all trees are one list; a leaf leads to itself.
        sizes = [len(tree.nodes) for tree in trees]
        roots = np.cumsum([0, *sizes[:-1]])
        nodes = np.concatenate([tree.nodes for tree in trees])
        places = np.arange(len(nodes))
        first = np.repeat(roots, sizes)
        is_leaf = nodes["is_leaf"].astype(bool)
        columns: dict[str, Any] = {
            "roots": roots,
            "left": np.where(is_leaf, places, nodes["left"] + first),
            "right": np.where(is_leaf, places, nodes["right"] + first),
            "feature": nodes["feature_idx"].astype(np.int64),
            "threshold": nodes["num_threshold"].astype(np.float64),
            "missing_left": nodes["missing_go_to_left"].astype(bool),
            "has_levels": nodes["is_categorical"].astype(bool),
            "value": nodes["value"].astype(np.float64),
            "baseline": vars(model)["_baseline_prediction"].astype(np.float64),
        }
        # Of a split by levels: which of them go to the left, one bit each.
        columns["levels_left"] = np.zeros((len(nodes), MOST_BITS), dtype=bool)
        for tree, root in zip(trees, roots, strict=True):
            for node in np.flatnonzero(tree.nodes["is_categorical"]):
                bits = int(tree.raw_left_cat_bitsets[tree.nodes["bitset_idx"][node]][0])
                columns["levels_left"][root + node] = [bits >> k & 1 for k in range(MOST_BITS)]
        for name, column in columns.items():
            self.register_buffer(name, torch.tensor(column))
        self.depth = max(tree.get_max_depth() for tree in trees)

    def forward(self, x: Tensor) -> Tensor:
        x = x.double()
        place = self.get_buffer("roots").expand(x.shape[0], -1)
        for _ in range(self.depth):
            value = x.gather(1, self.get_buffer("feature")[place])
            level = value.nan_to_num().long().clamp(0, MOST_BITS - 1)
            levels_left = self.get_buffer("levels_left")[place, level]
            below = value <= self.get_buffer("threshold")[place]
            goes_left = torch.where(self.get_buffer("has_levels")[place], levels_left, below)
            goes_left = torch.where(
                value.isnan(), self.get_buffer("missing_left")[place], goes_left
            )
            left, right = self.get_buffer("left")[place], self.get_buffer("right")[place]
            place = torch.where(goes_left, left, right)
        baseline = self.get_buffer("baseline")
        values = self.get_buffer("value")[place].unflatten(1, (-1, baseline.shape[1]))
        return values.sum(1) + baseline


class TreeFeatures(nn.Module):
    """Features of trees ``[B, F]`` from flat samples ``[B, C]``, of which some columns are codes of strings.

    Args:
        numbers: Columns that trees take as they are; they come second.
        few: Of columns of few levels a table ``[levels + 2, 1]`` from codes to places among those of training.
        many: Of columns of many levels a table ``[levels + 2, classes]`` of rates.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        few: dict[int, NDArray[np.float64]],
        many: dict[int, NDArray[np.float64]],
    ) -> None:
        super().__init__()
        self.register_buffer("numbers", torch.tensor(numbers, dtype=torch.int64))
        self.few = tuple(few)
        self.many = tuple(many)
        for place, table in (few | many).items():
            self.register_buffer(f"table{place}", torch.tensor(table))

    def forward(self, x: Tensor) -> Tensor:
        x = x.double()

        def values(place: int) -> Tensor:
            return look_up(x[:, place], self.get_buffer(f"table{place}"))

        parts = [*map(values, self.few), x[:, self.get_buffer("numbers")]]
        if self.many:
            # Class by class, of each all columns.
            parts.append(torch.stack([*map(values, self.many)], 2).flatten(1))
        return torch.cat(parts, 1)


def places_among(levels: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """List for each code below ``count``, a new one and a missing one its place among these levels, NaN of others."""
    table = np.full((count + 2, 1), np.nan)
    table[levels.astype(np.int64), 0] = np.arange(len(levels))
    return table
