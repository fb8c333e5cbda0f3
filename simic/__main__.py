"""Run the command `simic`, also `python -m simic`; where the extra `pipeline` is missing, say so."""

import os
import sys

# Read when torch loads OpenMP, here and in workers. Threads that spin while they wait stop each other on a machine that
# is busy elsewhere: a rollout with 2 threads beside another process took over twice as long
# (docs/history/experiments.md). A program that imports simic chooses for itself.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def main() -> None:
    """Run the command line; exit code 2 when the extra `pipeline` is not installed."""
    try:
        from simic import cli

        cli.main()
    except ModuleNotFoundError as missing:
        # A missing module of simic's own is a defect, and keeps its traceback.
        if missing.name is None or missing.name.startswith("simic"):
            raise
        print(
            f"simic: {missing.name} is not installed; pip install 'simic-grow[pipeline]'",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
