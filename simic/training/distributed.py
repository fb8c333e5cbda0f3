"""Several processes train one policy: the hosts are split, gradients and statistics are summed over all of them.

    torchrun --standalone --nproc-per-node 2 -m simic.training.distributed --prepared data/prepared --work WORK

Random numbers, minibatches and what they sum to are keyed by the global environment, so the run is that of one process
up to rounding; its checkpoints are the same files, and any number of processes may go on from them. The first process
alone writes, and the others' rows reach it at the end of each rollout. On several nodes: torchrun's ``--nnodes`` and
``--rdzv-endpoint``; only the first process needs WORK, all need PREPARED.
"""

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from simic import params
from simic.errors import SimicError
from simic.training import progress, trainer
from simic.training.interrupts import Interrupted, stop_on_signals
from simic.training.ranks import joined
from simic.training.session import open_session

EXIT_INTERRUPTED = 3  # as of every other command


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with params.yaml in a work directory, alone or under torchrun."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"))
    parser.add_argument("-S", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--prepared", type=Path, default=Path("data/prepared"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--fresh", action="store_true")
    given = parser.parse_args(arguments)
    tree, stop = params.load(given.params, given.overrides), threading.Event()
    try:
        with (
            joined(tree.runtime) as ranks,
            stop_on_signals(stop),
            open_session(tree, given.work, given.prepared, given.fresh, ranks) as session,
        ):
            trainer.train(session, progress.choose(tree.runtime.progress) if ranks.leads else (), stop)
    except (SimicError, Interrupted) as error:
        print(f"simic: {error}", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED if isinstance(error, Interrupted) else 1)


if __name__ == "__main__":
    main()
