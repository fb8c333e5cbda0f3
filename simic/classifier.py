"""Grow networks from Python: ``simic.grow(x, y)``, and a classifier after scikit-learn's conventions."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from simic.data.own.readers import Given, of_python
from simic.data.own.table_columns import codes
from simic.errors import SimicError, printable
from simic.evaluation.export_best import Grown
from simic.evaluation.grow import played
from simic.growth.grown_network import GrownNetwork, load_grown
from simic.params import Params
from simic.pipeline import grow as growing
from simic.pipeline.paths import Workspace

# A workspace without params or models: results do not depend on the folder that Python was started in.
NOWHERE = Path(os.devnull)
ROWS_AT_ONCE = 4096


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
    verbose: bool = True,
) -> "GrownModel":
    """Grow networks on your own data as ``simic grow`` does, and save the best in the new folder ``out``.

    ``x`` is a DataFrame, an array, a tensor, a torch Dataset or the path of a file; ``y`` its labels, or ``target`` the
    name of their column. Prints what was done to the data, and the network beside floors that cost less. SimicError
    naming what cannot be used.
    """
    say = (lambda line: print(printable(line))) if verbose else lambda line: None
    asked = growing.Growth(
        of_python(x, y, target),
        Path(out),
        policy=policy,
        host=host,
        hosts=n,
        epochs=epochs,
        target=target,
        layout=layout,
    )
    with _torch_as_it_was():
        grown = growing.grow(_params(rng_seed), Workspace(NOWHERE), asked, say)
    floors = grown.account.floors
    for line in [] if floors is None else [*floors.table().split("\n"), floors.advice]:
        say(line)
    return GrownModel(grown, load_grown(grown.path))


class GrownModel:
    """A network that ``grow`` saved, with its report: predicts names of classes for data like those it was given."""

    def __init__(self, report: Grown, network: GrownNetwork) -> None:
        self.report, self.network = report, network
        assert network.structure.inputs is not None
        self.classes_ = np.array(network.structure.inputs.classes)

    def predict(self, x: Any) -> np.ndarray:
        """Return the name of a class for each sample."""
        return self.classes_[self.predict_proba(x).argmax(axis=1)]

    def predict_proba(self, x: Any) -> np.ndarray:
        """Return the probability of each class, ``[N, classes]``, in the order of ``classes_``."""
        return probabilities(self.network, x)


def probabilities(network: GrownNetwork, x: Any) -> np.ndarray:
    """Return a grown network's probabilities for raw samples, float64 ``[N, classes]``."""
    inputs = network.structure.inputs
    assert inputs is not None
    if inputs.layout == "table":
        names = [f"x{k}" for k in range(np.shape(x)[1])] if not isinstance(x, pd.DataFrame) else None
        raw = codes((pd.DataFrame(x, columns=names) if names else x.rename(columns=str)), inputs.columns)
    else:
        raw = np.asarray(x)
        if raw.shape[1:] != inputs.shape:
            raise SimicError(f"x is {list(raw.shape)}: must be images {['N', *inputs.shape]}, as in training")
    with torch.no_grad():
        batches = torch.as_tensor(np.array(raw), dtype=inputs.dtype).split(ROWS_AT_ONCE)
        return torch.cat([network(batch).double().softmax(1) for batch in batches]).numpy()


class GrowClassifier(ClassifierMixin, BaseEstimator):
    """A network that a trained controller grows, after scikit-learn's conventions.

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
        random_state: int = 1,
    ) -> None:
        self.n, self.epochs, self.policy, self.host = n, epochs, policy, host
        self.layout, self.random_state = layout, random_state

    def __sklearn_tags__(self) -> Tags:
        """Say what X may hold."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Grow networks and keep the best by validation; ValueError naming what cannot be used."""
        x, y = self._checked(X, y)
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"GrowClassifier: y has {len(self.classes_)} class: must have at least two")
        given = Given("X", x, pd.Series(places, name="y"))
        asked = growing.Growth(
            given,
            NOWHERE,
            policy=self.policy,
            host=self.host,
            hosts=self.n,
            epochs=self.epochs,
            layout=self.layout,
            fit=True,
        )
        try:
            with (
                _torch_as_it_was(),
                growing.growth(_params(self.random_state), Workspace(NOWHERE), asked) as (setup, policy),
            ):
                with played(setup, policy, self.n) as done:
                    self.network_: GrownNetwork = done.network
                self.notes_ = setup.data.notes if setup.data is not None else ()
        except SimicError as error:
            raise ValueError(str(error)) from error
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of each sample."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, ``[N, classes]``, in the order of ``classes_``."""
        check_is_fitted(self)
        x, _ = self._checked(X, None)
        try:
            return probabilities(self.network_, x)
        except SimicError as error:
            raise ValueError(str(error)) from error

    def _checked(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return X and y as scikit-learn checks them; strings stay in a DataFrame."""
        fits = y is not None
        if isinstance(X, pd.DataFrame):
            validate_data(self, X, reset=fits, skip_check_array=True)  # type: ignore[arg-type]  # a frame too
            return X, column_or_1d(y, warn=True) if fits else None
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
    runtime = tree.runtime.model_copy(update={"progress": "none", "processes": 1, "device": "cpu"})
    return tree.model_copy(update={"runtime": runtime})


@contextmanager
def _torch_as_it_was() -> Iterator[None]:
    """Put back the settings of the caller's process that growing changes."""
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)
