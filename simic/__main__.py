"""Run the command `simic`, also `python -m simic`; where the extra `pipeline` is missing, say so."""

import sys


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
