"""Headroom and evaluation beyond the first length and the suite: shorter episodes, and tables of other widths."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import torch

from simic.data.batches import load_split, read_meta
from simic.data.prepare import prepare
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import Actor, play
from simic.envs.rewards import score
from simic.evaluation import evaluate
from simic.evaluation.evaluate import elsewhere
from simic.evaluation.headroom import measure, possible_schedules
from simic.evaluation.policies import BASELINES, Static
from simic.evaluation.result import OUTSIDE, HeadroomReport
from simic.evaluation.schedules import OpenLoop
from simic.evaluation.scoring import EvaluationSetup, play_for_score
from simic.growth.life.vocabulary import Stage
from simic.params import Runtime
from simic.training.checkpoint import Checkpoint, Manifest
from simic.training.growth_task import VALIDATION_ITERATION
from tests import standard
from tests.standard import (
    Evaluate,
    Headroom,
    Host,
    Instances,
    Lifecycle,
    Params,
    PPOParams,
    Prepare,
    Suite,
    Train,
)

CPU, PRICE = torch.device("cpu"), 2.0
AT_ONCE = Lifecycle(
    training_dwell=0, blending_dwell=0, min_prune_age=0, embargo_steps=0, reset_steps=0, max_seeds=1,
    sequential_development=False,
)  # fmt: skip
WIDTHS = {
    "friedman1": 10,
    "breast_cancer": 30,
}  # the first generator and the first real table, by width


def params_of(*epochs: int) -> Params:
    train = Train(
        host=Host(family="tables", preset="baseline"), episode_steps=(4, 7), batches_per_epoch=2, batch_size=32,
        lifecycle=AT_ONCE, price=PRICE, ppo=PPOParams(minibatches=1),
        actions={"blueprint": ["mlp", "sort"], "slot": [0]},
    )  # fmt: skip
    return standard.Params(
        train=train,
        headroom=Headroom(policies=("static", "patient"), search_tasks=2, floors=False),
        evaluate=Evaluate(eval_seeds=2, epochs=epochs, static_final=False),
        runtime=Runtime(cores=1, threads=1),
    )


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Two held-out tasks, and two from outside the suite."""
    folder = tmp_path_factory.mktemp("tables")
    instances = Instances(train=2, val=2, held_out=2, held_out_kinds=0, outside=2)
    suite = Suite(
        name="tables", kinds=("linear", "product"), held_out_kinds=(), instances=instances
    )
    prepare(Prepare(task="suite", suite=suite, samples=240), 1, folder / "prepared", folder / "raw")
    return folder / "prepared"


@pytest.fixture(scope="module")
def headroom(tables) -> HeadroomReport:
    return measure(params_of(6, 4), tables, CPU, lambda *progress: None)


def test_what_a_length_has_is_what_is_measured_of_it_alone(tables, headroom):
    """Bit for bit, costs included; only what the whole file was asked for is another."""
    assert list(headroom.others) == ["4 epochs", OUTSIDE] and (
        headroom.epochs,
        headroom.others["4 epochs"].epochs,
    ) == (6, 4)
    shortest = measure(params_of(4), tables, CPU, lambda *progress: None)
    shorter = headroom.others["4 epochs"]
    for name in HeadroomReport.model_fields.keys() - {"others", "validation"}:
        assert getattr(shorter, name) == getattr(shortest, name), name
    assert (
        shorter.test_pct != headroom.test_pct
        and shorter.policies["static"] != headroom.policies["static"]
    )


def test_tasks_from_outside_keep_their_widths_and_stand_in_one_report(tables, headroom):
    joined = headroom.others[OUTSIDE]
    assert [task.kind for task in joined.tasks] == list(WIDTHS) and {
        task.group for task in joined.tasks
    } == {OUTSIDE}
    assert joined.epochs == 6 and sorted(joined.rows) == list(joined.rows)
    # Of D columns to 32 to 32 to as many outputs as the task with most classes has.
    outputs = read_meta(tables).classes
    wide = [WIDTHS[joined.tasks[row].kind] for row in joined.rows]
    bare = [columns * 32 + 32 + 32 * 32 + 32 + 32 * outputs + outputs for columns in wide]
    assert list(joined.bare) == bare == [row[0] for row in joined.params]
    assert list(joined.policies["static"].params) == bare
    # Each as it is by itself, on its own hosts.
    accuracies = []
    for width in range(len(WIDTHS)):
        setup = EvaluationSetup.open(params_of(6, 4), tables, CPU, outside=width)
        with closing(setup.env):
            assert setup.env.training_data.shape[-1] in WIDTHS.values()
            [(_, episode)] = play_for_score(setup, {"static": Static()}, 6)
            accuracies += episode.score.test_accuracy_pct
    assert tuple(accuracies) == joined.policies["static"].test_accuracy_pct
    assert accuracies == [row[0] for row in joined.test_pct]


def blind(env: GrowthEnv) -> dict[str, Actor]:
    return {"blind": BASELINES["patient"](env)}


@pytest.fixture(scope="module")
def by_length(tables, headroom):
    """What the patient rule comes to on other lengths and on tasks from outside, under one of its names."""
    return elsewhere(params_of(6, 4), tables, CPU, blind, headroom)


def test_the_trained_policy_stands_there_too(tables, headroom, by_length):
    """The patient rule plays for one of its names: it must reach what headroom says that it does. That standings follow
    from scores is audited in every run (C9).
    """
    setup = EvaluationSetup.open(params_of(6, 4), tables)
    with closing(setup.env):
        checkpoint = Checkpoint(Path(), Manifest.model_construct(iteration=1), {})
        evaluation = evaluate.evaluate(
            setup, blind(setup.env), headroom, params_of(6, 4), checkpoint, others=by_length
        )
    assert evaluation.others == by_length and list(by_length) == list(headroom.others)
    assert json.loads(evaluation.to_json())["others"].keys() == by_length.keys()
    for name, length in by_length.items():
        report = headroom.others[name]
        assert length.epochs == report.epochs
        assert length.per_seed == {"blind": report.policies["patient"]}
        for standings in length.standings.values():
            assert (
                standings.tasks == 2
                and standings.policies["blind"] == standings.policies["patient"]
            )


def test_what_the_curve_of_training_stands_beside_is_of_its_own_episodes(tables, headroom):
    """On the tasks of validation, less the price, in episodes as long as validation has: (4 + 7 + 1) // 2 epochs."""
    assert list(headroom.validation) == ["static", "common", "patient"]
    params, tasks = params_of(6, 4), read_meta(tables).of_group("val")
    data = load_split(tables, "train"), load_split(tables, "val")
    env = GrowthEnv(params.train, params.rng_seed, *data, torch.arange(len(tasks)))
    schedule = OpenLoop([possible_schedules(params, env)[headroom.common]] * len(tasks))
    for rule, actor in (("static", Static()), ("common", schedule)):
        play(env, actor, VALIDATION_ITERATION, lambda *step: None, torch.tensor(tasks), steps=6)
        grown = torch.where(env.slots.stage == Stage.FOSSILIZED, env.state.seed_params, 0).sum(
            dim=1
        )
        assert bool(grown.any()) == (rule == "common")
        accuracy = env.state.measured.committed_accuracy
        expected = score(accuracy, grown, env.host.params, PRICE).mean()
        assert headroom.validation[rule] == pytest.approx(float(expected), abs=1e-4)
