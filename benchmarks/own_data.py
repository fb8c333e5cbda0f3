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

BUNDLED: Any = datasets  # typed as returning tuples
DATA = Path(os.environ.get("SIMIC_DATA_DIR", "data/raw"))
Made = tuple[Path, str | None]  # a file or folder, and the column to predict

COLUMNS = ("majority class", "logistic regression", "gradient boosting", "host alone", "plain", "all modules", "grown")
GAPS, MINORITY, IMAGES = 0.05, 12, 1000


def frame(load: Callable, target: str) -> pd.DataFrame:
    """Return a table of scikit-learn's with names of classes."""
    source = load(as_frame=True)
    return source.frame.drop(columns="target").assign(**{target: source.target_names[source.target]})


def iris(folder: Path) -> Made:
    frame(datasets.load_iris, "species").to_csv(folder / "iris.csv", index=False)
    return folder / "iris.csv", "species"


def wine(folder: Path) -> Made:
    frame(datasets.load_wine, "cultivar").to_parquet(folder / "wine.parquet")
    return folder / "wine.parquet", "cultivar"


def cancer(folder: Path) -> Made:
    frame(datasets.load_breast_cancer, "diagnosis").to_csv(folder / "cancer.tsv", sep="\t", index=False)
    return folder / "cancer.tsv", "diagnosis"


def rare(folder: Path) -> Made:
    """Keep 3 % of one class."""
    rows = frame(datasets.load_breast_cancer, "diagnosis")
    few = pd.concat([rows[rows.diagnosis == "benign"], rows[rows.diagnosis == "malignant"].head(MINORITY)])
    few.reset_index(drop=True).to_feather(folder / "rare.feather")
    return folder / "rare.feather", "diagnosis"


def diabetes(folder: Path) -> Made:
    """Predict a band of three from numbers, strings and gaps."""
    source = BUNDLED.load_diabetes(as_frame=True, scaled=False).frame
    rows = source.assign(
        sex=source.sex.map({1.0: "female", 2.0: "male"}), target=pd.qcut(source.target, 3, labels=[*"abc"])
    )
    gap = np.random.default_rng(0).random((len(rows), 3)) < GAPS
    for place, name in enumerate(("bmi", "bp", "sex")):
        rows[name] = rows[name].mask(gap[:, place])
    rows.to_csv(folder / "diabetes.csv", index=False)
    return folder / "diabetes.csv", "target"


def pixels(folder: Path) -> Made:
    x, y = datasets.load_digits(return_X_y=True)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return folder / "x.npy", None


def digits(folder: Path) -> Made:
    source = BUNDLED.load_digits()
    np.savez(folder / "digits.npz", x=source.images, y=source.target)
    return folder / "digits.npz", None


def mnist(folder: Path) -> Made:
    """Write 1,000 images of the test files, a folder for each class."""
    x, y = (
        read_idx(DATA / "mnist" / f"t10k-{name}-ubyte.gz", n)[:IMAGES]
        for name, n in (("images-idx3", 3), ("labels-idx1", 1))
    )
    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        (folder / "mnist" / str(int(label))).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(image)).save(folder / f"mnist/{int(label)}/{number}.png")
    return folder / "mnist", None


def by_rule(folder: Path, name: str, rule: Callable[[np.ndarray], np.ndarray]) -> Made:
    """Write 2,000 rows of 12 normal columns, labelled by a rule."""
    x = np.random.default_rng(1).normal(size=(2000, 12))
    rows = pd.DataFrame(x, columns=[f"c{k}" for k in range(12)]).assign(label=np.where(rule(x), "yes", "no"))
    rows.to_csv(folder / f"{name}.csv.gz", index=False)
    return folder / f"{name}.csv.gz", "label"


def order(folder: Path) -> Made:
    return by_rule(folder, "order", lambda x: np.sort(x, axis=1)[:, 8:].sum(axis=1) > 3.5)


def waves(folder: Path) -> Made:
    return by_rule(folder, "waves", lambda x: np.sin(4 * x[:, 0]) + np.sin(4 * x[:, 1]) > 0)


SETS = (iris, wine, cancer, rare, diabetes, pixels, digits, mnist, order, waves)
MNIST = 4, 10  # networks and epochs: it takes long


def row(make: Callable[[Path], Made]) -> tuple[str, ...]:
    """Grow on one data set; return a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        path, target = make(Path(folder))
        networks, epochs = MNIST if make is mnist else (8, None)
        model = simic.grow(path, out=Path(folder) / "grown", target=target, n=networks, epochs=epochs, verbose=False)
        floors = model.report.account.floors
    assert floors is not None
    cells = {}
    for each in floors.rows:
        value = each.accuracy_pct if each.balanced_pct is None else each.balanced_pct
        cells |= {name: f"{value:.1f}" for name in COLUMNS if each.name.startswith(name)}
    grown, advised = floors.rows[-1], floors.advice.partition(":")[0].removeprefix("Use ").removeprefix("the ")
    kind = f"{make.__name__} (`{''.join(path.suffixes) or 'folder'}`{', balanced' if grown.balanced_pct else ''})"
    return kind, *(cells.get(name, "–") for name in COLUMNS), grown.size, f"{grown.seconds:.0f}", advised


def main() -> None:
    """Print the table, row by row."""
    parser = page.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=[make.__name__ for make in SETS])
    given = parser.parse_args()
    wanted = [make for make in SETS if given.only is None or make.__name__ in given.only]
    if not (DATA / "mnist").exists():
        wanted = [make for make in wanted if make is not mnist]
    rows = [row(make) for make in wanted]
    print(*page.table(("data", *COLUMNS, "parameters", "seconds", "to use"), rows), sep="\n")


if __name__ == "__main__":
    main()
