"""Train one policy in several processes: hosts are split, gradients and statistics are summed over all of them.

    torchrun --standalone --nproc-per-node 2 -m simic.pipeline.distributed

in the project's root, with its params.yaml, prepared data and work directory. Random numbers, minibatches and what they
sum to are keyed by the global environment, so the run is that of one process up to rounding; its checkpoints are the
same files, and any number of processes may go on from them. The first process alone writes, and the others' rows reach
it at the end of each rollout. On several nodes: torchrun's ``--nnodes`` and ``--rdzv-endpoint``.
"""

import argparse
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from simic import params
from simic.errors import EXIT_INTERRUPTED, exit_with_message, printable
from simic.pipeline import display, dvc_record, engine, stages, training_work
from simic.pipeline.paths import Workspace
from simic.training import trainer
from simic.training.interrupts import Interrupted, stop_on_signals
from simic.training.ranks import joined
from simic.training.session import open_session


def main() -> None:
    """Train with params.yaml, alone or under torchrun; `simic train` then publishes and records what is finished."""
    # A command of its own: torchrun starts a module, and each of its processes parses the same arguments.
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--fresh", action="store_true", help="throw unfinished training away and train anew"
    )
    fresh = parser.parse_args().fresh
    workspace = Workspace(Path.cwd())
    with exit_with_message("simic"):
        try:
            _train(params.load(workspace.params), workspace, fresh)
        # Its own exit code, by which a scheduler tells a run that goes on from one that failed.
        except Interrupted as stopped:
            print(printable(f"simic: {stopped}"), file=sys.stderr)
            sys.exit(EXIT_INTERRUPTED)


def _train(tree: params.Params, workspace: Workspace, fresh: bool) -> None:
    # Every process computes the identity for itself; equal files make it equal.
    work = workspace.work(stages.fingerprint(tree, workspace))
    stop = threading.Event()
    code = dvc_record.code_revision(workspace.root)
    with stop_on_signals(stop), joined(tree.runtime) as ranks, ExitStack() as held:
        # One process holds the workspace for all; the others wait here, or fail with it.
        ranks.from_first(lambda: held.enter_context(engine.workspace_lock(workspace)))
        ranks.from_first(lambda: training_work.begin(tree, workspace, fresh))
        session = held.enter_context(
            open_session(tree, work, workspace.prepared, fresh, ranks, code)
        )
        watching = ()
        # Rows of all hosts reach the first process, which alone watches and logs.
        if ranks.leads:
            baseline_scores = stages.baseline_scores(tree, workspace)
            watching = display.beside(
                engine.observers(tree, workspace), tree.runtime.progress, baseline_scores
            )
        trainer.train(session, watching, stop)


if __name__ == "__main__":
    main()
