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


def params_of(*epochs: int, processes: int = 1) -> Params:
    train = Train(
        host=Host(family="tables", preset="baseline"), episode_steps=(4, 7), batches_per_epoch=2, batch_size=32,
        lifecycle=AT_ONCE, price=PRICE, ppo=PPOParams(minibatches=1),
        actions={"blueprint": ["mlp", "sort"], "slot": [0]},
    )  # fmt: skip
    return standard.Params(
        train=train,
        headroom=Headroom(policies=("static", "patient"), search_tasks=2, floors=False),
        evaluate=Evaluate(eval_seeds=2, epochs=epochs, static_final=False),
        runtime=Runtime(processes=processes, threads=1),
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
def found(tables) -> HeadroomReport:
    return measure(params_of(6, 4), tables, CPU, lambda *said: None)


def test_what_a_length_has_is_what_is_measured_of_it_alone(tables, found):
    """Bit for bit, costs included; only what the whole file was asked for is another."""
    assert list(found.others) == ["4 epochs", OUTSIDE] and (
        found.epochs,
        found.others["4 epochs"].epochs,
    ) == (6, 4)
    alone = measure(params_of(4), tables, CPU, lambda *said: None)
    same = HeadroomReport.model_fields.keys() - {"others", "validation"}
    shorter = found.others["4 epochs"]
    assert {name: getattr(shorter, name) for name in same} == {
        name: getattr(alone, name) for name in same
    }
    assert (
        shorter.test_pct != found.test_pct
        and shorter.policies["static"] != found.policies["static"]
    )


def test_tasks_from_outside_keep_their_widths_and_stand_in_one_report(tables, found):
    joined = found.others[OUTSIDE]
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
    setup, accuracies = EvaluationSetup.open(params_of(6, 4), tables), []
    with closing(setup.env):
        for width in range(len(WIDTHS)):
            each = EvaluationSetup.open(params_of(6, 4), tables, CPU, outside=width)
            with closing(each.env):
                assert each.env.training_data.shape[-1] in WIDTHS.values()
                [(_, done)] = play_for_score(each, {"static": Static()}, 6)
                accuracies += done.score.test_accuracy_pct
    assert tuple(accuracies) == joined.policies["static"].test_accuracy_pct
    assert accuracies == [row[0] for row in joined.test_pct]


def blind(env: GrowthEnv) -> dict[str, Actor]:
    return {"blind": BASELINES["patient"](env)}


@pytest.fixture(scope="module")
def reached(tables, found):
    """What the patient rule comes to on other lengths and on tasks from outside, under one of its names."""
    return elsewhere(params_of(6, 4), tables, CPU, blind, found)


@pytest.mark.slow  # that work is shared out alike is in tests/training/test_worker_layout.py
def test_processes_of_their_own_measure_the_same_on_tasks_from_outside(tables, found, reached):
    assert elsewhere(params_of(6, 4, processes=2), tables, CPU, blind, found) == reached


def again(*given):
    raise AssertionError("what was done is done again")


def stopped_at(call, owner, place, monkeypatch):
    """Ctrl-C in the function of that name."""

    def stop(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(owner, place, stop)
        with pytest.raises(KeyboardInterrupt):
            call()


def test_the_trained_policy_stands_there_too(tables, found, reached):
    """The patient rule plays for one of its names: it must reach what headroom says that it does. That standings follow
    from scores is audited in every run (C9).
    """
    others, setup = reached, EvaluationSetup.open(params_of(6, 4), tables)
    with closing(setup.env):
        kept = Checkpoint(Path(), Manifest.model_construct(iteration=1), {})
        whole = evaluate.evaluate(
            setup, blind(setup.env), found, params_of(6, 4), kept, others=others
        )
    assert whole.others == others and list(others) == list(found.others)
    assert json.loads(whole.to_json())["others"].keys() == others.keys()
    for name, own in others.items():
        report = found.others[name]
        assert own.epochs == report.epochs
        assert own.per_seed == {"blind": report.policies["patient"]}
        for standings in own.standings.values():
            assert (
                standings.tasks == 2
                and standings.policies["blind"] == standings.policies["patient"]
            )


def test_what_the_curve_of_training_stands_beside_is_of_its_own_episodes(tables, found):
    """On the tasks of validation, less the price, in episodes as long as validation has: (4 + 7 + 1) // 2 epochs."""
    assert list(found.validation) == ["static", "common", "patient"]
    params, tasks = params_of(6, 4), read_meta(tables).of_group("val")
    data = load_split(tables, "train"), load_split(tables, "val")
    with closing(GrowthEnv(params.train, params.rng_seed, *data, torch.arange(len(tasks)))) as env:
        schedule = OpenLoop([possible_schedules(params, env)[found.common]] * len(tasks))
        for rule, actor in (("static", Static()), ("common", schedule)):
            play(env, actor, VALIDATION_ITERATION, lambda *step: None, torch.tensor(tasks), steps=6)
            kept = torch.where(env.slots.stage == Stage.FOSSILIZED, env.state.seed_params, 0).sum(
                dim=1
            )
            assert bool(kept.any()) == (rule == "common")
            accuracy = env.state.measured.committed_accuracy
            reached = score(accuracy, kept, env.host.params, PRICE).mean()
            assert found.validation[rule] == pytest.approx(float(reached), abs=1e-4)
