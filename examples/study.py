"""Queue a study with Prefect: the deployment simic/train once for each setting and training seed.

    make serve                  # in another terminal; or workers of a pool, each in a checkout of its own
    python examples/study.py

Every run states all that it changes, since a run leaves its overrides in params.yaml. MLflow compares the results.
"""

from itertools import product

from prefect.deployments import run_deployment

CORES = ("lstm", "none")
SEEDS = (1, 2, 3)


def main() -> None:
    """Submit six runs, and wait for none of them."""
    for core, seed in product(CORES, SEEDS):
        overrides = {"rng_seed": seed, "train": {"policy": {"core": core}}}
        run = run_deployment(
            "simic/train", parameters={"overrides": overrides}, timeout=0, tags=["memory"]
        )
        print(f"{core}, seed {seed}: flow run {run.name}")


if __name__ == "__main__":
    main()
