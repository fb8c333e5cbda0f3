"""Grow networks from Python: ``simic.grow(x, y)``, and a classifier after scikit-learn's conventions."""

import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from simic import durable
from simic.data.own.readers import UserData, of_python
from simic.errors import SimicError, printable
from simic.evaluation.export_best import Grown
from simic.evaluation.grow_networks import grown_hosts
from simic.growth.grown_network import GrownNetwork, Product, load_grown
from simic.params import Params
from simic.pipeline import grow as growing
from simic.pipeline.paths import Workspace
from simic.torch_modes import as_before
from simic.transfer import as_array
from simic.validation_messages import whole_number

# A workspace without params or models: results do not depend on the folder that Python was started in.
NOWHERE = Path(os.devnull)
MOST_NETWORKS = 10_000
MOST_EPOCHS = 100_000
LARGEST_SEED = 2**31 - 1


def grow(
    x: Any,
    y: Any = None,
    *,
    out: str | Path = "grown",
    target: str | None = None,
    layout: str | None = None,
    policy: str = "learned",
    host: str | None = None,
    n: int = 8,
    epochs: int | None = None,
    rng_seed: int = 1,
    reference: bool = True,
    verbose: bool = True,
) -> "GrownModel":
    """Grow networks on your own data as ``simic grow`` does, and save the best one.

    Args:
        x: A DataFrame, an array, a tensor, a torch Dataset or the path of a file.
        y: The labels, if x has none.
        out: New folder of the network.
        target: Name of the column with the labels.
        layout: Where channels of images are: nchw or nhwc.
        policy: As of ``simic grow --policy``.
        host: As of ``simic grow --host``; default: the policy's own.
        n: Networks grown side by side; the best by validation is saved.
        epochs: That each network trains for; default: the middle of the policy's training.
        rng_seed: Of all random numbers.
        reference: Keep a sample of a table's rows beside the network.
        verbose: Print what was done to the data, and the network beside floors that cost less.

    Raises:
        SimicError: names what cannot be used.
    """

    def say(line: str) -> None:
        if verbose:
            print(printable(line))

    # What is to be done, as the command would say it.
    request = growing.Growth(
        of_python(x, y, target),
        durable.user_path(out),
        policy=policy,
        host=host,
        hosts=whole_number("n", n, 1, MOST_NETWORKS),
        epochs=None if epochs is None else whole_number("epochs", epochs, 1, MOST_EPOCHS),
        target=target,
        layout=layout,
        reference=reference,
    )

    # Grow, and say how the result compares with floors that cost less.
    with as_before():
        seed = whole_number("rng_seed", rng_seed, 0, LARGEST_SEED)
        grown = growing.grow(_params(seed), Workspace(NOWHERE), request, say)
    floors = grown.account.floors
    if floors is not None:
        for line in (*floors.table().split("\n"), floors.advice):
            say(line)
    # Loaded from its folder: what the caller gets is what was saved.
    model = GrownModel(grown, load_grown(grown.path))
    if grown.account.recommended is not None:
        model.recommended = grown.account.recommended.model
    return model


class GrownModel:
    """Predict the names of classes with a network that ``grow`` saved, for data like those it was grown on."""

    def __init__(self, report: Grown, network: GrownNetwork) -> None:
        self.report = report
        self.network = network
        # What was saved beside it, and should be used in its place; it predicts likewise.
        self.recommended: Product | None = None
        # In the order of the network's outputs.
        self.classes_ = network.classes_

    def predict(self, x: Any) -> np.ndarray:
        """Predict the name of a class for each sample."""
        return self.network.predict(x)

    def predict_proba(self, x: Any) -> np.ndarray:
        """Predict the probability of each class, ``[N, classes]``, in the order of ``classes_``."""
        return self.network.predict_proba(x)


class GrowClassifier(ClassifierMixin, BaseEstimator):
    """Grow a network by a trained controller, after scikit-learn's conventions.

    ``X`` are rows (a DataFrame may hold strings, booleans and missing values) or images. A fifth of the samples chooses
    among ``n`` networks.
    """

    def __init__(
        self,
        n: int = 8,
        epochs: int | None = None,
        policy: str = "learned",
        host: str | None = None,
        layout: str | None = None,
        random_state: Any = 1,
    ) -> None:
        # Stored as given, since scikit-learn's clone compares arguments with attributes.
        self.n = n
        self.epochs = epochs
        self.policy = policy
        self.host = host
        self.layout = layout
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        """Say what X may hold."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Grow networks and keep the best by validation; ValueError naming what cannot be used."""
        # Labels become places in ``classes_``, the columns of the probabilities.
        x, y = self._checked(X, y)
        # Before classes are counted: of a regression's target every value would be one.
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"GrowClassifier: y has {len(self.classes_)} class: must have at least two"
            )
        # Keep the best of n networks in memory; nothing is written.
        try:
            count = whole_number("n", self.n, 1, MOST_NETWORKS)
            request = growing.Growth(
                UserData("X", x, pd.Series(places, name="y")),
                NOWHERE,
                policy=self.policy,
                host=self.host,
                hosts=count,
                epochs=None
                if self.epochs is None
                else whole_number("epochs", self.epochs, 1, MOST_EPOCHS),
                layout=self.layout,
                fit=True,
            )
            seeded = _params(self._rng_seed())
            with (
                as_before(),
                growing.growth(seeded, Workspace(NOWHERE), request) as (setup, policy),
            ):
                with grown_hosts(setup, policy, count) as best:
                    self.network_: GrownNetwork = best.network
                self.notes_ = setup.data.notes if setup.data is not None else ()
        except SimicError as error:
            # Scikit-learn's convention for data that cannot be used.
            raise ValueError(str(error)) from error
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict the class of each sample."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probability of each class, ``[N, classes]``, in the order of ``classes_``."""
        check_is_fitted(self)
        x, _ = self._checked(X, None)
        try:
            return self.network_.predict_proba(x)
        except SimicError as error:
            raise ValueError(str(error)) from error

    def _rng_seed(self) -> int:
        """Turn ``random_state`` into a seed: a number is one, a generator (None: numpy's own) is drawn from."""
        if self.random_state is None or hasattr(self.random_state, "randint"):
            return int(check_random_state(self.random_state).randint(LARGEST_SEED))
        return whole_number("random_state", self.random_state, 0, LARGEST_SEED)

    def _checked(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Check X and y as scikit-learn does; strings stay in a DataFrame, and tensors become arrays."""
        fits = y is not None
        try:
            X, y = (as_array(part) if isinstance(part, Tensor) else part for part in (X, y))
        except SimicError as error:
            raise ValueError(str(error)) from error
        if isinstance(X, pd.DataFrame):
            # Names and number of columns are compared, no more: an array would make objects of all columns.
            validate_data(self, X, reset=fits, skip_check_array=True)  # type: ignore[arg-type]  # a frame too
            return X, column_or_1d(y, warn=True) if fits else None
        # Missing values and images are accepted, unlike scikit-learn's default.
        options: dict[str, Any] = {
            "reset": fits,
            "ensure_all_finite": "allow-nan",
            "allow_nd": True,
            "dtype": "numeric",
        }
        if not fits:
            return validate_data(self, X, **options), None
        x, y = validate_data(self, X, y, **options)
        return x, y


def _params(rng_seed: int) -> Params:
    tree = Params(rng_seed=rng_seed)
    # Quiet, on the CPU and in one process: a library leaves the machine to its caller.
    runtime = tree.runtime.model_copy(update={"progress": "none", "cores": 1, "device": "cpu"})
    return tree.model_copy(update={"runtime": runtime})
