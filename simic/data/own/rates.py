"""Encode levels of a column as rates of the classes, without a row's own answer."""

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import KFold
from sklearn.preprocessing import TargetEncoder

FOLDS = 5


def rates(
    codes: NDArray[np.floating], count: int, y: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Encode the levels of one column as rates of the classes among rows with that level, shrunk towards all rows.

    Args:
        codes: The level of each training row, 0 to ``count``; NaN where it is missing.
        count: Of levels that have a code of their own; ``count`` itself is any other.
        y: Classes of these rows.

    Returns:
        Rates of the training rows ``[N, classes]``, each from the other folds, and for other rows the table of codes
        ``[count + 2, classes]``, by all training rows, the last for a missing one.
    """
    levels = np.asarray(codes, dtype=np.float64)[:, None]
    every = np.append(np.arange(count + 1.0), np.nan)[:, None]
    encoder = TargetEncoder(target_type="continuous")
    folds = KFold(FOLDS, shuffle=True, random_state=0)
    trained = np.empty((len(y), int(y.max()) + 1))
    table = np.empty((len(every), trained.shape[1]))
    for label in range(trained.shape[1]):
        answers = (y == label).astype(np.float64)
        for rest, fold in folds.split(levels):
            encoder.fit(levels[rest], answers[rest])
            trained[fold, label] = encoder.transform(levels[fold])[:, 0]
        table[:, label] = encoder.fit(levels, answers).transform(every)[:, 0]
    return trained, table
