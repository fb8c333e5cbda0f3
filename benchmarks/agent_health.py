"""What watching costs: the same updates with and without the metrics that are only looked at, in turns, in one run.

    python -m benchmarks.agent_health [--repeats 15] [--out benchmarks/results/agent_health.json] [-S KEY=VALUE]

One iteration of the default run is collected once; then its update is done with the health of the network measured
(exact entropy and divergence, hidden state, dormant units, feature rank) and without, in pairs. The cost is the median
difference of a pair, as a share of the update and of the whole iteration. Processor time of one thread, since other
programs on the machine are no cost of ours.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from benchmarks import page
from simic import params
from simic.agent.health import Health
from simic.agent.ppo import PPO, with_advantages
from simic.agent.rollout import collect
from simic.data.prepare import prepare
from simic.training.session import compose

Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds of processor time, and what came out."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def measure(tree: params.Params, repeats: int) -> dict[str, float]:
    """Seconds, and the two shares."""
    train, seed = tree.train, tree.rng_seed
    with tempfile.TemporaryDirectory() as folder:
        prepare(tree.prepare, seed, Path(folder) / "prepared", Path(folder))
        env, state = compose(tree, Path(folder) / "prepared", torch.device("cpu"))
    policy = state.ppo.policy
    collecting, (rollout, _) = timed(lambda: collect(env, policy, state.normalizers, 0, seed, env.steps))
    rollout = with_advantages(rollout, rollout.rewards, train.ppo.gamma, train.ppo.gae_lambda)
    # A rate so small that all updates do the same work.
    settings = train.ppo.model_copy(update={"learning_rate": 1e-9, "target_kl": None})
    ppo = PPO(policy, settings, seed, total_updates=1)
    pairs = []
    for turn in range(repeats + 1):
        seconds = {}
        for watch in (True, False) if turn % 2 else (False, True):
            seconds[watch] = timed(lambda watch=watch: ppo.update(rollout, 0, Health(ppo) if watch else None))[0]
        if turn:
            pairs.append((seconds[True], seconds[False]))
    cost, update = median(on - off for on, off in pairs), median(off for _, off in pairs)
    return {
        "collect_seconds": collecting,
        "update_seconds": update,
        "watching_seconds": cost,
        "share_of_update": cost / update,
        "share_of_iteration": cost / (collecting + update),
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/agent_health.json"))
    parser.add_argument("-S", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(params.load(Path("params.yaml"), given.overrides), given.repeats)
    page.write_result(given.out, {"repeats": given.repeats, "overrides": given.overrides} | found)
    print({name: round(value, 5) for name, value in found.items()})


if __name__ == "__main__":
    main()
