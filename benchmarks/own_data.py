"""Ten data sets as a user has them: what ``simic.grow`` prints beside the network, in one table.

    python -m benchmarks.own_data [--only iris digits]

Eight are real, in eight formats, with strings, gaps, 3 % of one class, 150 rows; in two the labels follow a rule. MNIST
is read from $SIMIC_DATA_DIR, else data/raw, and left out where it is not there. Seconds are those of this machine.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from sklearn import datasets

import simic
from benchmarks import page
from simic.data.published import read_idx

# Typed as returning tuples, which is only so where one asks for them.
BUNDLED: Any = datasets
MNIST = Path(os.environ.get("SIMIC_DATA_DIR", "data/raw")) / "mnist"
COLUMNS = (
    "majority class",
    "logistic regression",
    "gradient boosting",
    "host alone",
    "plain",
    "all modules",
    "grown",
)


def frame(name: str, target: str) -> pd.DataFrame:
    """Load a table of scikit-learn's with names of classes."""
    source = getattr(BUNDLED, f"load_{name}")(as_frame=True)
    return source.frame.drop(columns="target").assign(
        **{target: source.target_names[source.target]}
    )


def rare() -> pd.DataFrame:
    """Keep 3 % of one class."""
    rows = frame("breast_cancer", "diagnosis")
    few: Any = pd.concat(
        [rows[rows.diagnosis == "benign"], rows[rows.diagnosis == "malignant"].head(12)]
    )
    return few.reset_index(drop=True)


def diabetes() -> pd.DataFrame:
    """Predict a band of three from numbers, strings and gaps."""
    source = BUNDLED.load_diabetes(as_frame=True, scaled=False).frame
    # Words, as a user's table has them.
    sex = source.sex.map({1.0: "female", 2.0: "male"})
    bands = pd.qcut(source.target, 3, labels=[*"abc"])
    rows = source.assign(sex=sex, target=bands)
    # One value in twenty is missing, in numbers and strings.
    gap = np.random.default_rng(0).random((len(rows), 3)) < 0.05
    for place, name in enumerate(("bmi", "bp", "sex")):
        rows[name] = rows[name].mask(gap[:, place])
    return rows


def by_rule(rule: Callable[[np.ndarray], np.ndarray]) -> pd.DataFrame:
    """Label 2,000 rows of 12 normal columns by a rule."""
    x = np.random.default_rng(1).normal(size=(2000, 12))
    return pd.DataFrame(x, columns=[f"c{k}" for k in range(12)]).assign(
        label=np.where(rule(x), "yes", "no")
    )


def pixels(path: Path) -> None:
    """Write rows of 64 pixels, and their labels in a file beside them."""
    x, y = datasets.load_digits(return_X_y=True)
    np.save(path, x)
    np.save(path.with_name("y.npy"), y)


def digits(path: Path) -> None:
    """Write images and labels as two arrays of one file."""
    source = BUNDLED.load_digits()
    np.savez(path, x=source.images, y=source.target)


def mnist(path: Path) -> None:
    """Write 1,000 images of the test files, a folder for each class."""
    x, y = (
        read_idx(MNIST / f"t10k-{name}-ubyte.gz", n)[:1000]
        for name, n in (("images-idx3", 3), ("labels-idx1", 1))
    )
    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        (path / str(int(label))).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(image)).save(path / f"{int(label)}/{number}.png")


# By name: the file or folder, the column to predict, and what makes the table or writes the files.
SETS: dict[str, tuple[str, str | None, Callable]] = {
    "iris": ("iris.csv", "species", lambda: frame("iris", "species")),
    "wine": ("wine.parquet", "cultivar", lambda: frame("wine", "cultivar")),
    "cancer": ("cancer.tsv", "diagnosis", lambda: frame("breast_cancer", "diagnosis")),
    "rare": ("rare.feather", "diagnosis", rare),
    "diabetes": ("diabetes.csv", "target", diabetes),
    "pixels": ("x.npy", None, pixels),
    "digits": ("digits.npz", None, digits),
    "mnist": ("mnist", None, mnist),
    "order": (
        "order.csv.gz",
        "label",
        lambda: by_rule(lambda x: np.sort(x, axis=1)[:, 8:].sum(axis=1) > 3.5),
    ),
    "waves": (
        "waves.csv.gz",
        "label",
        lambda: by_rule(lambda x: np.sin(4 * x[:, 0]) + np.sin(4 * x[:, 1]) > 0),
    ),
}


def write(path: Path, rows: pd.DataFrame) -> None:
    """Write a table in the format that the name of the file asks for."""
    if path.suffix in (".parquet", ".feather"):
        getattr(rows, f"to_{path.suffix[1:]}")(path)
    else:
        rows.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")


def row(name: str) -> tuple[str, ...]:
    """Grow on one data set, and describe it in a row of the table."""
    # MNIST takes long, so half as many networks grow, for ten epochs.
    file, target, make = SETS[name]
    networks, epochs = (4, 10) if name == "mnist" else (8, None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        make(path) if target is None else write(path, make())
        # Nothing else is set: this is the call of a user.
        model = simic.grow(
            path,
            out=Path(folder) / "grown",
            target=target,
            n=networks,
            epochs=epochs,
            verbose=False,
        )
    floors = model.report.account.floors
    assert floors is not None
    # Balanced accuracy where classes are uneven, as the advice reads it.
    cells = {}
    for row in floors.rows:
        value = row.accuracy_pct if row.balanced_pct is None else row.balanced_pct
        cells |= {column: f"{value:.1f}" for column in COLUMNS if row.name.startswith(column)}
    grown = floors.rows[-1]
    # Advice begins with what it advises.
    advised = floors.advice.partition(":")[0].removeprefix("Use ").removeprefix("the ")
    kind = f"{name} (`{''.join(path.suffixes) or 'folder'}`{', balanced' if grown.balanced_pct else ''})"
    return (
        kind,
        *(cells.get(column, "–") for column in COLUMNS),
        grown.size,
        f"{grown.seconds:.0f}",
        advised,
    )


def main() -> None:
    parser = page.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS))
    options = parser.parse_args()
    rows = [row(name) for name in options.only if name != "mnist" or MNIST.exists()]
    print(*page.table(("data", *COLUMNS, "parameters", "seconds", "to use"), rows), sep="\n")


if __name__ == "__main__":
    main()
