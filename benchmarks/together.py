"""Measure what is left to decide on the suite ``together``, before any controller is trained.

    python -m benchmarks.together --work FOLDER [--out FILE.json]

Every set of at most two modules is trained on every task, from the start, and measured at every epoch; on held-out
tasks twice, on other hosts. Rivals choose by looks, by trees that learned on tasks of training, or by trying within one
training: halving, expected improvement, or one set after the other in a host that grows on. FOLDER keeps data and
trainings; the same command goes on where it was stopped.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import page
from benchmarks.boosting import add_scores
from benchmarks.together_rivals import (
    EPOCHS,
    HALVINGS,
    Chooser,
    Improvement,
    Integers,
    Values,
    across,
    features_of,
    halve,
)
from examples.extensions.together import CONTROL, FRESH, TRAINED
from simic import durable, params, rng
from simic.data.batches import Dataset, HeldOut, epoch_order, load_held_out, load_split, read_meta
from simic.evaluation.intervals import paired_difference
from simic.growth.batch.forward import Templates
from simic.growth.batch.population import Population
from simic.growth.batch.template import Fits
from simic.growth.life.vocabulary import Slots, Stage
from simic.growth.networks.blueprints import blueprints_of
from simic.growth.networks.hosts import HostSpec, build_host
from simic.params import Params
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.rng import Purpose

ROOT = Path(__file__).parents[1]
OVERRIDES = [
    "prepare.suite.name=together",
    "prepare.suite.instances={train: 324, val: 1, held_out: 81, held_out_kinds: 243, outside: 0}",
    "train.host.preset=double",
]
TASKS_AT_ONCE = 16
# Hosts of each set, on held-out tasks.
HOSTS = 2
# Epochs at the end whose validation is averaged, as one is noise of some points.
LAST = 4
KINDS = blueprints_of("tables")
# No module, one, or two different ones.
SETS = [members for size in range(3) for members in combinations(range(len(KINDS)), size)]
# Sets that are tried in one host, and epochs of each.
TRIES = [
    (count, epochs) for count in (2, 3, 4, 5) for epochs in (2, 3, 4, 6) if count * epochs < 20
]
# Epochs of the chooser's first sets that are looked at.
LOOKED = (2, 3, 4, 6, 8, 12, EPOCHS)
CANDIDATES = 5
# Of the features, those of a set's pair and of the task's best looks.
HARDNESS = 4
Members = tuple[int, ...]


# --- trainings ---


@dataclass(frozen=True)
class Ground:
    """Tasks, and how hosts are trained on them; tasks of training have no test split."""

    tree: Params
    host: HostSpec
    train: Dataset
    val: Dataset
    test: Dataset | None = None

    def curves(
        self,
        tasks: Tensor,
        grow: Callable[[int, Values], Sequence[Members] | None],
        first_host: int,
    ) -> tuple[Values, Values]:
        """Train hosts; measure accuracy on the validation and the test split after each epoch, ``[E, epochs]``.

        Args:
            tasks: of the hosts, ``[E]``.
            grow: gives their sets of modules before an epoch, from validation so far; None: as they are.
            first_host: number of the first.
        """
        envs = torch.arange(first_host, first_host + len(tasks))
        settings = self.tree.train
        population = Population(self.host, KINDS, envs, self.tree.rng_seed, settings.host_optimizer)
        population.reset(0, tasks)
        slots = Slots.empty(len(tasks), self.host.slots)
        val = np.full((len(tasks), EPOCHS), np.nan)
        test = np.full((len(tasks), EPOCHS), np.nan)
        for epoch in range(EPOCHS):
            # A module that stays in its slot goes on as it is.
            if (sets := grow(epoch, val)) is not None:
                before = slots.blueprint
                slots = _filled(sets, self.host.slots)
                is_new = (slots.blueprint >= 0) & (slots.blueprint != before)
                population.germinate(slots, is_new, self.train)
            order = epoch_order(
                self.tree.rng_seed,
                0,
                envs,
                epoch,
                len(self.train),
                settings.batch_size,
                settings.batches_per_epoch,
            )
            rows = order + tasks[:, None, None] * len(self.train)
            population.train_epoch(slots, self.train, rows)
            val[:, epoch] = _accuracy(population, slots, self.val)
            if self.test is not None:
                test[:, epoch] = _accuracy(population, slots, self.test)
        return val, test

    def of_sets(
        self,
        sets: Sequence[Members],
        hosts: int,
    ) -> tuple[Values, Values]:
        """Train every set on every task from the start, ``[hosts, T, S, epochs]``."""
        # Some tasks at a time, as all their hosts are in memory.
        val: list[Values] = []
        test: list[Values] = []
        for host in range(hosts):
            for part in torch.arange(self.train.tasks).split(TASKS_AT_ONCE):
                tasks = part.repeat_interleave(len(sets))
                members = [*sets] * len(part)
                first = (host * self.train.tasks + int(part[0])) * len(sets)
                curves = self.curves(tasks, partial(_from_the_start, members), first)
                val.append(curves[0])
                test.append(curves[1])
        shape = (hosts, self.train.tasks, len(sets), EPOCHS)
        return np.concatenate(val).reshape(shape), np.concatenate(test).reshape(shape)


def _from_the_start(
    members: Sequence[Members], epoch: int, val: Values
) -> Sequence[Members] | None:
    return None if epoch else members


def _filled(
    sets: Sequence[Members],
    width: int,
) -> Slots:
    """Put sets of modules into slots, at full amplitude."""
    rows = torch.tensor([[*members, *[-1] * (width - len(members))] for members in sets])
    slots = Slots.empty(len(rows), width)
    is_grown = rows >= 0
    stage = torch.where(is_grown, int(Stage.BLENDING), slots.stage)
    return replace(slots, stage=stage, blueprint=rows, alpha=is_grown.float())


def _accuracy(
    population: Population,
    slots: Slots,
    data: Dataset,
) -> Values:
    everything = torch.zeros(1, *slots.shape, dtype=torch.bool)
    return population.evaluate(slots, data, everything).correct[0].double().mean(1).numpy()


def tries(
    ground: Ground, plan: tuple[int, int], order: Integers, first_host: int
) -> tuple[Values, Values]:
    """Try sets one after the other in a host that grows on, and go on with the best; give the curves of ``Ground``.

    Args:
        ground: tasks and hosts.
        plan: how many sets, and for how many epochs each.
        order: sets from the most promising one on, ``[T, S]``.
        first_host: number of the first host.
    """
    count, epochs = plan

    # The last of them is the way back to the best one.
    def grow(
        epoch: int,
        val: Values,
    ) -> list[Members] | None:
        number, rest = divmod(epoch, epochs)
        if rest or number > count:
            return None
        places = np.full(len(order), number)
        if number == count:
            places = val[:, epochs - 1 : epoch : epochs].argmax(1)
        chosen = np.take_along_axis(order, places[:, None], 1)[:, 0]
        return [SETS[k] for k in chosen]

    return ground.curves(torch.arange(ground.train.tasks), grow, first_host)


# --- looks ---


def look(
    host: HostSpec,
    data: Dataset,
) -> Values:
    """Measure how well products of two modules' untrained features go with the labels, ``[T, P, P + 1]``.

    Products of features have the kernel K₁ ∘ K₂. Σ K(n, m) ⟨eₙ, eₘ⟩ between two halves of the rows, with e the centred
    classes, is the criterion of Gretton et al. 2005 without its bias; it is divided by its deviation by chance. The
    last column is of single modules.
    """
    fits = Fits()
    templates = Templates(host, KINDS).seeds[0]
    looks = []
    for task in torch.arange(data.tasks).split(1):
        # How well errors of two rows agree, and how near the rows are to each other by each module.
        x, y = data.of_tasks(task, slice(None))
        errors = F.one_hot(y[0], data.classes).float()
        agreement = _between_halves(errors)
        kernels = []
        for kind, template in enumerate(templates):
            row = template.draw(rng.key(0, Purpose.ALIGNMENT, kind).expand(1))
            if template.fits:
                row = template.with_fit(row, fits.of(template, data, task))
            features = template.features(template.layout.unpack(row), x.flatten(2))[0]
            kernel = _between_halves(features)
            kernels.append(kernel / kernel.square().mean().sqrt().clamp(min=1e-12))
        # Of all pairs at once.
        rows = torch.stack(kernels)
        squares = rows.square()
        pairs = (rows * agreement) @ rows.T / (squares @ squares.T).sqrt()
        singles = (rows @ agreement) / squares.sum(1).sqrt()
        looks.append(torch.cat((pairs, singles[:, None]), 1))
    return torch.stack(looks).double().numpy()


def _between_halves(columns: Tensor) -> Tensor:
    first, second = (columns - columns.mean(0)).chunk(2)
    return (first @ second.T).flatten()


# --- the gate ---


def kept(
    path: Path,
    make: Callable[[], Mapping[str, Values]],
) -> dict[str, Values]:
    """Make arrays once; afterwards they are read."""
    if not path.exists():
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, **make())
        durable.replace_file(path, file.getvalue())
    with np.load(path) as arrays:
        return dict(arrays)


def record(
    ground: Ground,
    hosts: int,
) -> dict[str, Values]:
    """Train every set, and look."""
    val, test = ground.of_sets(SETS, hosts)
    return {"val": val, "test": test, "looks": look(ground.host, ground.train)}


def without_choice(
    ground: Ground,
    held_out: HeldOut,
) -> dict[str, Values]:
    """Measure what does not choose: all modules together from the start, and gradient boosting; test accuracy."""
    # All modules of the first layer have one shape.
    first, *rest = ground.host.segments
    segments = (first, *rest[:1] * (len(KINDS) - 1))
    shapes = ground.host.slot_shapes[:1] * len(KINDS)
    host = replace(ground.host, segments=segments, slot_shapes=shapes)
    _, test = replace(ground, host=host).of_sets([tuple(range(len(KINDS)))], 1)
    scores: dict[str, list[float]] = {}
    add_scores(scores, held_out)
    boosting = np.concatenate([*scores.values()]) / 100.0
    return {"all modules together": test[0, :, 0, -1], "gradient boosting": boosting}


@dataclass(frozen=True)
class Tasks:
    """Tasks of a ground: curves of all sets on a host, what sets are expected to reach, and their order."""

    ground: Ground
    val: Values
    test: Values
    expected: Values  # [T, S, F]: gains, then what says how hard a task is
    order: Integers

    @classmethod
    def of(
        cls, ground: Ground, curves: Mapping[str, Values], gains: Values, features: Values
    ) -> "Tasks":
        """Put sets in order; the last host is the one that policies have."""
        expected = np.concatenate((gains[..., None], features[:, :, :HARDNESS]), -1)
        order = np.argsort(-gains, 1, kind="stable")
        return cls(ground, curves["val"][-1], curves["test"][-1], expected, order)

    def reached(
        self,
        sets: Integers,
        epochs: Integers | int = EPOCHS,
    ) -> Values:
        """Look up test accuracy ``[T]`` of a set of each task after so many epochs."""
        return self.test[np.arange(len(sets)), sets, np.asarray(epochs) - 1]


@dataclass(frozen=True)
class Lessons:
    """What choosers learn from: tasks of training, the pair of rules of each, features and scores of all sets."""

    tasks: Tasks
    pairs: list[str]
    features: Values
    scores: Values

    @classmethod
    def of(
        cls,
        work: Path,
    ) -> "Lessons":
        """Train what is missing."""
        tree, workspace = prepared(work, OVERRIDES)
        meta = read_meta(workspace.prepared)
        numbers = meta.of_group("train")
        train, val = (
            of_tasks(load_split(workspace.prepared, name), numbers) for name in ("train", "val")
        )
        host = build_host(tree.train.host, train.shape, train.classes)
        ground = Ground(tree, host, train, val)
        curves = kept(work / "training.npz", lambda: record(ground, 1))
        scores = curves["val"][0, :, :, -LAST:].mean(-1)
        features = features_of(curves["looks"], SETS)
        # Choosers are asked about pairs of rules that they do not know, as on held-out tasks.
        pairs = [pair_of(meta.tasks[k].kind) for k in numbers]
        gains = kept(
            work / "gains.npz", lambda: {"gains": across(pairs, features, scores, pairs, features)}
        )["gains"]
        return cls(Tasks.of(ground, curves, gains, features), pairs, features, scores)


def prepared(
    work: Path,
    overrides: list[str],
) -> tuple[Params, Workspace]:
    """Prepare data where that is not done yet."""
    tree = params.load(ROOT / "params.yaml", overrides)
    workspace = Workspace(work)
    if not workspace.prepared.exists():
        stages.prepare(tree, workspace)
    return tree, workspace


def held_out_ground(
    tree: Params,
    held_out: HeldOut,
) -> Ground:
    host = build_host(tree.train.host, held_out.train.shape, held_out.train.classes)
    return Ground(tree, host, held_out.train, held_out.val, held_out.test)


def pair_of(kind: str) -> str:
    """Name the two rules of a kind without their join."""
    return kind.split("_", 1)[1]


def gate(work: Path) -> page.Found:
    """Train what is missing, and compare."""
    lessons = Lessons.of(work)
    tree, workspace = prepared(work, OVERRIDES)
    held_out = load_held_out(workspace.prepared)
    ground = held_out_ground(tree, held_out)
    curves = kept(work / "held_out.npz", lambda: record(ground, HOSTS))
    others = kept(work / "others.npz", lambda: without_choice(ground, held_out))
    new = asked_of(lessons, ground, curves)
    policies = {
        "host alone": new.test[:, 0, -1],
        "best common set": new.test[:, lessons.scores.mean(0).argmax(), -1],
        **others,
        "best look": new.reached(best_look(curves["looks"])),
        "chooser": new.reached(new.order[:, 0]),
        **within_one_training(work, lessons, new),
        "the first five, trained whole": new.reached(first_best(new, EPOCHS)),
        "oracle": new.reached(curves["val"][0, :, :, -LAST:].mean(-1).argmax(1)),
    }
    # Everything is compared with the chooser, task by task.
    groups = groups_of([task.kind for task in held_out.tasks])
    chooser = policies["chooser"]
    hindsight = np.take_along_axis(new.test[:, :, -1], new.order[:, :CANDIDATES], 1).max(1)
    looked = {str(epochs): new.reached(first_best(new, epochs)) for epochs in LOOKED} | {
        "hindsight": hindsight
    }
    return {
        group: {
            "policies": {
                name: row(values[places], chooser[places]) for name, values in policies.items()
            },
            "looked": {
                name: row(values[places], chooser[places]) for name, values in looked.items()
            },
        }
        for group, places in groups.items()
        if len(places)
    }


def asked_of(
    lessons: Lessons,
    ground: Ground,
    curves: Mapping[str, Values],
) -> Tasks:
    """Put the sets of other tasks in the order of a chooser that learned on all known ones."""
    features = features_of(curves["looks"], SETS)
    expected = Chooser.fit(lessons.features, lessons.scores).expected(features)
    return Tasks.of(ground, curves, expected, features)


def of_tasks(
    data: Dataset,
    tasks: Sequence[int],
) -> Dataset:
    """Take some tasks."""
    # Tasks lie one after the other.
    x, y = data.of_tasks(torch.tensor(tasks), slice(None))
    classes = tuple(data.task_classes[k] for k in tasks)
    return replace(data, x=x.flatten(0, 1), y=y.flatten(0, 1), task_classes=classes)


def within_one_training(
    work: Path,
    lessons: Lessons,
    new: Tasks,
) -> dict[str, Values]:
    """Play rivals that try sets within one training, each as it does best on tasks of training."""
    old = lessons.tasks
    plan, improvement = fitted(lessons)
    # Tried on curves, from the start of each set.
    played = [improvement.play(*task) for task in zip(new.expected, new.val, strict=True)]
    sets, epochs = np.array(played).T
    # Tried in one host, which keeps what it has learned.
    live = {
        plan: kept(work / "tries_{}_{}.npz".format(*plan), partial(tried, old, new, plan))
        for plan in TRIES
    }
    count, each = best = max(live, key=lambda plan: live[plan]["val"].mean())
    return {
        f"halving {plan}": new.reached(*halve(plan, new.order, new.val)),
        "expected improvement": new.reached(sets, epochs),
        f"in one host: {count} sets, {each} epochs each": live[best]["test"],
    }


def fitted(lessons: Lessons) -> tuple[Sequence[tuple[int, int]], Improvement]:
    """Take the plan of halving that is best on tasks of training, and fit expected improvement to these."""
    old = lessons.tasks
    rows = np.arange(len(old.val))

    # Plans are compared by validation at the end.
    def at_end(plan: Sequence[tuple[int, int]]) -> float:
        sets, epochs = halve(plan, old.order, old.val)
        return float(old.val[rows, sets, epochs - 1].mean())

    return max(HALVINGS, key=at_end), Improvement.fit(old.expected, old.val, lessons.scores)


def tried(
    old: Tasks,
    new: Tasks,
    plan: tuple[int, int],
) -> dict[str, Values]:
    """Try sets in one host; validation at the end on tasks of training, test accuracy on held-out ones."""
    val, _ = tries(old.ground, plan, old.order, 1_000_000)
    _, test = tries(new.ground, plan, new.order, 2_000_000)
    return {"val": val[:, -LAST:].mean(1), "test": test[:, -1]}


def best_look(looks: Values) -> Integers:
    """Choose the set of the best look, ``[T]``."""
    columns = [np.zeros(len(looks))]
    for members in SETS[1:]:
        columns.append(looks[:, members[0], members[1] if len(members) > 1 else -1])
    return np.stack(columns, 1).argmax(1)


def first_best(
    tasks: Tasks,
    epochs: int,
) -> Integers:
    """Choose the best of the chooser's first sets by validation after so many epochs of each, ``[T]``."""
    candidates = tasks.order[:, :CANDIDATES]
    scores = np.take_along_axis(tasks.val[:, :, epochs - 1], candidates, 1)
    return np.take_along_axis(candidates, scores.argmax(1)[:, None], 1)[:, 0]


def groups_of(kinds: Sequence[str]) -> dict[str, Integers]:
    """List the tasks of pairs of rules that are known, of new ones, of their exclusive ors, of the control, and of
    fresh joins.
    """
    is_known = np.isin(kinds, TRAINED)
    is_control = np.isin(kinds, CONTROL)
    is_fresh = np.isin(kinds, FRESH)
    is_exclusive = np.array([kind.startswith("xor") for kind in kinds])
    is_new = ~is_known & ~is_control & ~is_fresh
    groups = {
        "known pairs": is_known,
        "new pairs and rules": is_new,
        "of these, exclusive or": is_new & is_exclusive,
        "control": is_control,
        "fresh joins": is_fresh,
    }
    return {name: np.flatnonzero(flags) for name, flags in groups.items()}


def row(
    values: Values,
    chooser: Values,
) -> dict[str, list[float]]:
    """Give points, and those over the chooser, with 95 % intervals over tasks, and over seeds where there are some."""
    intervals = {
        "points": paired_difference(100 * values, np.zeros_like(chooser)),
        "over_chooser": paired_difference(100 * values, 100 * chooser),
    }
    return {
        name: [
            round(interval.estimate, 2),
            round(interval.low, 2),
            round(interval.high, 2),
        ]
        for name, interval in intervals.items()
    }


def main() -> None:
    parser = page.parser(__doc__, page.RESULTS / "together.json")
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    result = gate(options.work)
    page.write_result(options.out, result)
    for group, tables in result.items():
        print(f"\n{group}")
        for name, numbers in {**tables["policies"], **tables["looked"]}.items():
            print(f"  {name:42} {numbers['points']} {numbers['over_chooser']}")


if __name__ == "__main__":
    main()
