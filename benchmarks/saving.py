"""What `runtime.checkpoint_steps=1` costs: processor time of a save over that of a step, and its size.

    python -m benchmarks.saving [--hosts 24] [-S KEY=VALUE ...]

One iteration of the default run with so many hosts, in one process; every step is saved.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from simic import params
from simic.data.prepare import prepare
from simic.training.session import Session, open_session
from simic.training.trainer import train

SETTINGS = (
    "train.iterations=1",
    "train.validate_every=2",
    "runtime.processes=1",
    "runtime.checkpoint_steps=1",
    "runtime.progress=none",
    "prepare.suite.instances={train: 24, val: 4, held_out: 4, held_out_kinds: 4}",
)


def timed(owner: object, name: str, spent: list[float]) -> None:
    """Seconds of processor time of every call from now on."""
    work: Callable = getattr(owner, name)

    def watched(*given: object, **named: object) -> object:
        began = time.process_time()
        try:
            return work(*given, **named)
        finally:
            spent.append(time.process_time() - began)

    setattr(owner, name, watched)


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def watch(session: Session, spent: dict[str, list[float]], sizes: list[int]) -> None:
    """Times the steps of the environment and what a save consists of."""
    timed(session.env, "step", spent["step"])
    timed(session.env, "state_dict", spent["save"])
    timed(session.partials, "write", spent["save"])
    write = session.partials.write

    def sized(tensors, manifest) -> None:
        write(tensors, manifest)
        sizes.append(bytes_of(session.partials.path(manifest.step)))

    session.partials.write = sized


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=24)
    parser.add_argument("-S", dest="overrides", action="append", default=[])
    given = parser.parse_args()
    tree = params.load(Path("params.yaml"), [*SETTINGS, f"train.envs={given.hosts}", *given.overrides])
    spent: dict[str, list[float]] = {"step": [], "save": []}
    sizes = list[int]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(tree.prepare, tree.rng_seed, folder / "prepared", folder)
        with open_session(tree, folder / "work", folder / "prepared") as session:
            watch(session, spent, sizes)
            train(session)
            host = session.env.host.params
        whole = bytes_of(folder / "work" / "checkpoints" / "000001")
    saves = len(sizes)
    cost = sum(spent["save"]) / sum(spent["step"][:saves])
    print(f"{given.hosts} hosts of {host} parameters, {saves} saves: a save costs {100 * cost:.1f} % of a step")
    print(f"first {sizes[0] / 1e6:.2f} MB, last {sizes[-1] / 1e6:.2f} MB, the checkpoint {whole / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
