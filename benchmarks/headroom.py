"""Is there anything to learn? The best fixed single-seed schedule against the host alone, before any RL.

Every (slot, blueprint) is germinated at ``--step``, advanced as soon as its gates allow and fossilized; the best one is
chosen by validation accuracy on the first half of the seeds and compared with the static host, paired, by the same
measure on the other half, so that the choice does not flatter it.

    python -m benchmarks.headroom -S train.host.preset=impaired [--seeds 20] [--step 0] [--out FILE.json]
"""

import argparse
import json
from pathlib import Path

import torch

from simic import params
from simic.data.batches import load_split
from simic.data.prepare import prepare
from simic.envs.growth_env import GrowthEnv
from simic.evaluation.statistics import compare, mean_interval
from simic.growth.life.vocabulary import ALPHA_TARGETS, TEMPO_STEPS, Action, Op, Stage
from simic.params import Params
from simic.training import sharing

NEXT_OP = {
    Stage.GERMINATED: Op.ADVANCE,
    Stage.TRAINING: Op.ADVANCE,
    Stage.BLENDING: Op.ADVANCE,
    Stage.HOLDING: Op.FOSSILIZE,
}


def play(tree: Params, data: Path, seeds: int, step: int, learning_rate: float) -> tuple[list[str], torch.Tensor]:
    """Committed validation accuracy ``[1 + K·P, seeds]``: the static host (row 0), then every single-seed schedule."""
    train, val = load_split(data, "train"), load_split(data, "val")
    optimizer = tree.train.host_optimizer.model_copy(update={"learning_rate": learning_rate})
    setting = tree.train.model_copy(update={"host_optimizer": optimizer})
    probe = GrowthEnv(setting, tree.rng_seed, train, val, torch.arange(1))
    choices = [(-1, 0)] + [(k, p) for k in range(probe.host.slots) for p in range(len(probe.blueprints))]
    slot, blueprint = (torch.tensor(column).repeat_interleave(seeds) for column in zip(*choices, strict=True))
    make = sharing.population(tree.runtime, sharing.layout(tree.runtime, len(slot), torch.device("cpu")))
    env = GrowthEnv(setting, tree.rng_seed, train, val, torch.arange(seeds).repeat(len(choices)), compose=make)
    observation, _ = env.reset(options={"iteration": 0})
    info = None
    for now in range(env.steps):
        op = torch.full_like(slot, int(Op.WAIT))
        stage = env.slots.stage.gather(1, slot.clamp(min=0)[:, None])[:, 0]
        for at, following in NEXT_OP.items():
            op = torch.where(stage == at, int(following), op)
        op = torch.where((stage == Stage.DORMANT) & (now >= step), int(Op.GERMINATE), op)
        target, rows = slot.clamp(min=0), torch.arange(len(slot))
        legal = observation.masks["slot"][rows, op, target]
        legal &= (op != Op.GERMINATE) | observation.masks["blueprint"][rows, target, blueprint]
        op = torch.where(legal & (slot >= 0), op, int(Op.WAIT))
        zero = torch.zeros_like(op)
        action = Action(
            op, target, blueprint, zero, zero + TEMPO_STEPS.index(3), zero + ALPHA_TARGETS.index(1.0), zero, zero
        )
        observation, _, _, _, info = env.step(action)
    env.close()
    assert info is not None
    names = ["static"] + [f"{env.blueprints[p].name} at slot {k}" for k, p in choices[1:]]
    return names, info.committed_accuracy.view(len(choices), seeds).double()


def study(tree: Params, data: Path, seeds: int, step: int, learning_rate: float) -> dict[str, object]:
    """The comparison as plain numbers; accuracies in points."""
    names, accuracy = play(tree, data, seeds, step, learning_rate)
    half = seeds // 2
    best = int(accuracy[1:, :half].mean(dim=1).argmax()) + 1
    chosen, static = accuracy[best, half:].tolist(), accuracy[0, half:].tolist()
    compared = compare(chosen, static, tree.rng_seed)
    return {
        "host": tree.train.host.model_dump(mode="json"),
        "learning_rate": learning_rate,
        "germination_step": step,
        "seeds": seeds - half,
        "best": names[best],
        "best_accuracy_pct": vars(mean_interval(chosen)),
        "static_accuracy_pct": vars(mean_interval(static)),
        "difference_pct": vars(compared.difference),
        "p_value": compared.p_value,
        "mean_accuracy_pct": dict(zip(names, accuracy[:, half:].mean(dim=1).tolist(), strict=True)),
    }


def main() -> None:
    """Run the study of the command line and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-S", dest="overrides", action="append", metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--step", type=int, default=0)
    parser.add_argument("--learning-rates", type=float, nargs="+", help="default: the params' one")
    parser.add_argument("--data", type=Path, default=Path("data/prepared"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    tree = params.load(Path("params.yaml"), arguments.overrides)
    if not arguments.data.exists():
        prepare(tree.prepare, tree.rng_seed, arguments.data, Path("data/raw"))
    rates = arguments.learning_rates or [tree.train.host_optimizer.learning_rate]
    found = [study(tree, arguments.data, arguments.seeds, arguments.step, rate) for rate in rates]
    text = json.dumps(found, indent=2)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
