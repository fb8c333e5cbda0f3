"""Laws that hold whatever the numbers are: samples are the files', strangers differ, what learns moves, a host alone is
what it is among others, an exported network answers as the one it was made from.
"""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from simic.audit.reference.world.bank import Samples
from simic.audit.reference.world.exported import Exported
from simic.audit.reference.world.life import FOSSILIZED
from simic.audit.reference.world.validation import points
from simic.audit.world.beside import CLOSE_CALL, Beside
from simic.audit.world.blocks import unpacked
from simic.audit.world.ledger import Ledger
from simic.audit.world.witness import WorldWitness
from simic.envs.growth_env import GrowthEnv
from simic.growth.batch.population import Snapshot
from simic.growth.export import grown_network, write_network

ALONE_STEPS = 9  # of the host that plays alone
VISIBLE = 1e-6  # of a weight: a hundred times what float32 rounds away


def strangers(snapshot: Snapshot, rows: Sequence[Beside], frozen: bool, ledger: Ledger) -> None:
    """Hosts start with different weights; with a trained host that came with the data all start with its."""
    params = snapshot.stores["host"].param
    for row in rows:
        for other in rows[row.place + 1 :]:
            equal = bool(torch.equal(params[row.place], params[other.place]))
            where = f"rows {row.place} and {other.place}"
            ledger.note("first weights of two hosts", where, float(equal != frozen))


def same_samples(env: GrowthEnv, row: Beside, ledger: Ledger) -> None:
    """The environment holds the pairs of the file for the task of a host."""
    host = row.host
    for split, data, own in (
        ("training", env.training_data, host.training),
        ("validation", env.validation_data, host.validating),
    ):
        rows = slice(host.task * len(data), (host.task + 1) * len(data))
        x, y = data.x[rows], data.y[rows]
        alike = x.shape == own.x.shape and torch.equal(x.double(), own.x) and torch.equal(y, own.y)
        ledger.note(f"{split} samples", f"task {host.task}", float(not alike))


def same_rows(witness: WorldWitness, row: Beside, ledger: Ledger) -> None:
    """The epoch just trained saw the samples that it was to see, in their order."""
    host = row.host
    expected = torch.tensor(host.order) + host.task * len(host.training.y)
    found = witness.order[row.place].flatten()
    wrong = float((found != expected).sum()) if found.shape == expected.shape else math.inf
    ledger.note("order of training samples", row.where, wrong)


class Movement:
    """What learns moves, and nothing else does; by parameter, over all hosts and steps.

    What hardly moves in the reference either is not asked to: a unit may be dead or saturated in all hosts that have
    it, and its steps be lost in the rounding of float32.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._moves: dict[str, bool] = {}

    def add(self, row: Beside, before: Snapshot, after: Snapshot, known: set[str]) -> None:
        """One epoch of one host."""
        learning = row.host.learning()
        for name, store, parts in row.blocks():
            if name not in known or store not in before.stores:
                continue
            start, end = (side.stores[store].param[row.place] for side in (before, after))
            if not learning.get(name, False):
                self._ledger.note("parameters that stay", f"{row.where}, {name}", float((end != start).sum()))
                continue
            known_start, known_end = (unpacked(flat, parts) for flat in (start, end))
            for entry, own in row.host.block(name).items():
                label = f"{self._kind(row, name)}{entry}"
                if float((own - known_start[entry]).abs().max()) > VISIBLE:
                    moved = not torch.equal(known_end[entry], known_start[entry])
                    self._moves[label] = self._moves.get(label, False) or moved

    def close(self) -> None:
        """After the last step."""
        still = sorted(label for label, moved in self._moves.items() if not moved)
        self._ledger.note("parameters that learn and never moved", ", ".join(still) or "all hosts", len(still))

    def _kind(self, row: Beside, name: str) -> str:
        kind, _, slot = name.partition(".")
        if kind != "seed":
            return "" if kind == "host" else "gate "
        kinds = list(row.host.world.body.blueprints[int(slot)])
        return f"{kinds[row.host.slots[int(slot)].seed.blueprint]} "


def alone(env: GrowthEnv, actions: Sequence[Tensor], iteration: int, ledger: Ledger) -> None:
    """The last host once more, without the others: bit for bit the same in the backend ``loop``."""
    short = min(ALONE_STEPS, len(actions))
    among, single = (
        GrowthEnv(
            env.train, env.rng_seed, env.training_data, env.validation_data, ids, backend="loop",
            train_tasks=env.train_tasks,
        )
        for ids in (env.env_ids, env.env_ids[-1:])
    )  # fmt: skip
    where = f"iteration {iteration + 1}, host {int(env.host_ids[-1])}"
    seen = among.reset(options={"iteration": iteration})[0].features[-1:]
    own = single.reset(options={"iteration": iteration})[0].features
    ledger.note("a host alone is what it is among others", f"{where}, step 0", float((seen != own).sum()))
    for step in range(short):
        seen, reward = among.step(actions[step])[:2]
        own, paid = single.step(actions[step][-1:])[:2]
        wrong = (seen.features[-1:] != own.features).sum() + (reward[-1:] != paid).sum()
        ledger.note("a host alone is what it is among others", f"{where}, step {step + 1}", float(wrong))


def scored(env: GrowthEnv, committed: Tensor, where: str, ledger: Ledger) -> None:
    """The score of an episode is the accuracy of what was kept, seeds that were not left out: on the samples that it is
    measured on at every step it is the same, but for one that rounding turns.
    """
    witness = env.population
    env.population = witness.population if isinstance(witness, WorldWitness) else witness
    try:
        accuracy, _ = env.committed(env.validation_data)
    finally:
        env.population = witness
    apart = float((accuracy - committed).abs().max()) - 100.0 / len(env.validation_data)
    ledger.note("score of what was kept", where, max(0.0, apart))


def exported(env: GrowthEnv, rows: Sequence[Beside], ledger: Ledger) -> None:
    """The host that kept most, written as a product and run from its files by torch alone."""
    row = max(rows, key=lambda row: sum(slot.stage == FOSSILIZED for slot in row.host.slots))
    population = env.population.population if isinstance(env.population, WorldWitness) else env.population
    committed = float(env.state.measured.committed_accuracy[row.place])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "grown"
        write_network(grown_network(population, env.slots, row.place, committed=True), path, [], "")
        answers_as(path, row.host.validating, row.host.classes, committed, f"row {row.place}", ledger)


def answers_as(
    path: Path, samples: Samples, classes: int, accuracy: float, where: str, ledger: Ledger, slack: float = 0.0
) -> None:
    """An exported network answers with that accuracy (points, within ``slack`` and what is too close to call): by its
    weights in the reference, and by its program in torch.
    """
    network = Exported.read(path)
    own = network.answers(samples, classes)
    slack += 100.0 * float((own.lead < CLOSE_CALL).double().mean())
    program = torch.export.load(path / "network.pt2").module()
    with torch.no_grad():
        right = program(samples.x.float())[:, :classes].argmax(1) == samples.y
    differ = (right.double() != own.correct) & (own.lead >= CLOSE_CALL)
    ledger.note("answers of the exported weights and program", where, float(differ.sum()))
    ledger.number("parameters of the exported network", where, network.size, network.params)
    for what, found in (("weights", points(own.correct)), ("program", points(right.double()))):
        ledger.note(f"accuracy of the exported {what}", where, max(0.0, abs(found - accuracy) - slack))
