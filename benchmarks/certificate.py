"""What rounding comes to: the largest deviations of clean small trainings from the float64 reference.

    python -m benchmarks.certificate [--rng-seeds 5] [--settings lstm gru …]

Settings that differ in memory, critic, ratio, schedules, rewards and ends of episodes; a certificate of each for every
seed. The limits of simic.certify.iteration and simic.certify.episodes are about ten times what this prints.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks import page
from simic import params
from simic.audit.certificate import Line
from simic.audit.certify import part
from simic.audit.certify_code import small_run
from simic.data.prepare import prepare

PLAIN = ["prepare.task=digits", "train.reward.mode=shaped", "train.episode_end=truncate"]
SETTINGS: dict[str, list[str]] = {
    "default": [],
    "default, no memory": ["train.policy.core=none"],
    "lstm": [*PLAIN, "train.policy.core=lstm"],
    "no memory, score": [*PLAIN, "train.policy.core=none", "train.reward.mode=score"],
    "per head": [*PLAIN, "train.ppo.ratio=per_head", "train.ppo.head_weight=mean"],
    "adaptive, no scales": [
        *PLAIN, "train.ppo.learning_rate_schedule=adaptive", "train.ppo.normalize_observations=false",
        "train.ppo.normalize_rewards=false",
    ],
    "fast": [*PLAIN, "train.ppo.adam_eps=1e-8", "train.ppo.learning_rate=0.02"],
}  # fmt: skip


def measured(tree: params.Params, prepared: Path) -> list[Line]:
    """Return everything that was compared of one small training."""
    with tempfile.TemporaryDirectory() as scratch:
        subject = small_run(tree, prepared, Path(scratch))
        parts = part("iterations", subject.iterations), part("episodes", lambda: subject.episodes(every=True))
        return [line for each in parts for line in each.lines]


def main() -> None:
    """Print the largest deviation of each thing over all settings and seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rng-seeds", type=int, default=5)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    options = parser.parse_args()
    largest: dict[str, float] = {}
    for name in options.settings:
        tree = params.load(Path("params.yaml"), SETTINGS[name])
        with tempfile.TemporaryDirectory() as folder:
            prepare(tree.prepare, tree.rng_seed, Path(folder) / "prepared", Path(folder))
            for rng_seed in range(1, options.rng_seeds + 1):
                lines = measured(tree.model_copy(update={"rng_seed": rng_seed}), Path(folder) / "prepared")
                beyond = [line.what for line in lines if not line.ok]
                print(f"{name}, seed {rng_seed}: {'; '.join(beyond) or 'within limits'}", flush=True)
                for line in lines:
                    found = float("inf") if line.deviation is None else line.deviation
                    largest[line.what] = max(largest.get(line.what, 0.0), found)
    rows = [(what, f"{deviation:.2g}") for what, deviation in sorted(largest.items()) if deviation]
    print(*page.table(("compared", "largest deviation"), rows), sep="\n")


if __name__ == "__main__":
    main()
