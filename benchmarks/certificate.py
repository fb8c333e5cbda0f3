"""What rounding comes to: the largest deviations of clean training from the audit's reference of the learner.

    python -m benchmarks.certificate [--rng-seeds 5] [--settings lstm gru …]

Settings that differ in memory, critic, ratio, schedules, rewards and ends of episodes; a certificate of each for every
seed. The limits of simic.audit.certify_agent are ten times what this prints.
"""

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks import page
from simic import params
from simic.audit.certify_agent import certify_agent
from simic.data.prepare import prepare

PLAIN = ["prepare.task=digits", "train.reward.mode=shaped", "train.episode_end=truncate"]
BROKEN = (  # hosts that are rolled back, so that episodes end early
    "train.governor={sensitivity_sigmas: 0.01, loss_multiplier: 0.01, absolute_loss_chances: 0.9, window: 20, "
    "min_history: 2, consecutive_panics: 1, rollback_budget: 100000}"
)
PER_HEAD = [
    "train.ppo.ratio=per_head", "train.ppo.head_weight=mean", "train.ppo.gradient_accumulation=2",
    "train.ppo.entropy_scale={op: 2.0}", "train.ppo.entropy_floor={op: 0.95, slot: 0.9}",
]  # fmt: skip
ADAPTIVE = [
    "train.ppo.learning_rate_schedule=linear", "train.ppo.normalize_observations=false",
    "train.ppo.normalize_rewards=false",
]  # fmt: skip
HOT = "train.ppo.adam_eps=1e-8"
SETTINGS: dict[str, list[str]] = {
    "default": [],
    "default, no memory": ["train.policy.core=none", "train.policy.critic=shared"],
    "default, gru, shaped": ["train.policy.core=gru", "train.reward.mode=shaped"],
    "lstm": PLAIN,
    "gru": [*PLAIN, "train.policy.core=gru", "train.policy.critic=shared"],
    "no memory, score": [*PLAIN, "train.policy.core=none", "train.reward.mode=score"],
    "per head": [*PLAIN, *PER_HEAD],
    "adaptive, no scales": [*PLAIN, *ADAPTIVE],
    "free": [*PLAIN, "train.ppo.target_kl=null", "train.ppo.learning_rate=0.003", "train.actions={}"],
    "broken hosts": [*PLAIN, BROKEN],
    "fast": [*PLAIN, HOT, "train.ppo.learning_rate=0.02"],
}


def measured(tree: params.Params, prepared: Path) -> tuple[dict[str, float], list[str], float]:
    """The largest deviation by what is compared, what is beyond its limit, and seconds of processor time."""
    started = time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        found = certify_agent(tree, prepared, Path(scratch))
    seconds = time.process_time() - started
    largest: dict[str, float] = {}
    for each in found:
        largest[each.what] = max(largest.get(each.what, 0.0), each.deviation)
    return largest, [f"{each.what}, {each.where}" for each in found if not each.ok], seconds


def main() -> None:
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
                seeded = tree.model_copy(update={"rng_seed": rng_seed})
                found, beyond, seconds = measured(seeded, Path(folder) / "prepared")
                print(f"{name}, seed {rng_seed}: {seconds:.1f} s, {'; '.join(beyond) or 'within limits'}", flush=True)
                largest = {what: max(largest.get(what, 0.0), found.get(what, 0.0)) for what in largest | found}
    rows = [(what, f"{deviation:.2g}") for what, deviation in sorted(largest.items()) if deviation]
    print(*page.table(("compared", "largest deviation"), rows), sep="\n")


if __name__ == "__main__":
    main()
