"""Measure on tables of your own whether two modules reach more than one.

    python -m benchmarks.together_tables TABLE.csv ...

The last column is predicted. On three splits every set of at most two modules is trained twice: of each size the best
by validation of one host is tested on the other. Test accuracy in points.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.boosting import add_scores
from benchmarks.together import HOSTS, LAST, OVERRIDES, ROOT, SETS, held_out_ground
from simic import params
from simic.data import prepare
from simic.data.batches import load_held_out
from simic.data.own.own_data import own_data
from simic.data.own.readers import read
from simic.evaluation.intervals import mean_interval
from simic.pipeline.grow import batches_of

SPLITS = (1, 2, 3)


def measured(
    path: Path,
    split: int,
) -> dict[str, float]:
    """Measure one split of a table."""
    # The table is split and encoded as grow does it.
    tree = params.load(ROOT / "params.yaml", [*OVERRIDES, f"rng_seed={split}"])
    shares = {"val": tree.prepare.split.val, "test": tree.prepare.split.test}
    target = str(pd.read_csv(path, sep=None, engine="python", nrows=1).columns[-1])
    data = own_data(read(path, target, ()), shares, split)
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared"
        prepare.write_bank(data.bank, "own", tree.prepare.split.model_dump(), split, prepared)
        held_out = load_held_out(prepared)
    # As grow trains on few rows.
    train = batches_of(len(held_out.train), tree.train)
    ground = held_out_ground(tree.model_copy(update={"train": train}), held_out)
    val, test = (curves[:, 0, :, -LAST:].mean(-1) for curves in ground.of_sets(SETS, HOSTS))
    # Chosen on one host, tested on the other.
    scores: dict[str, list[float]] = {}
    add_scores(scores, held_out)
    # Of each size the set that is best by validation.
    results = {"gradient boosting": float(np.mean([*scores.values()]))}
    for size, name in enumerate(("host alone", "one module", "two modules")):
        places = np.array([k for k, members in enumerate(SETS) if len(members) == size])
        results[name] = 100 * float(test[1, places[val[0, places].argmax()]])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path, nargs="+")
    options = parser.parse_args()
    # A table counts once, however many splits it has.
    gains = []
    for path in options.tables:
        rows = pd.DataFrame([measured(path, split) for split in SPLITS]).mean()
        print(f"{path.stem:45}", rows.round(1).to_dict(), flush=True)
        gains.append(rows["two modules"] - rows["one module"])
    if len(gains) > 1:
        print("two modules over one:", mean_interval(gains))


if __name__ == "__main__":
    main()
