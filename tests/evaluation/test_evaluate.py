"""Evaluation on real hosts is paired, repeatable, and counts what was done.

That figures follow from scores (C9), and scores and sizes from the weights (K3), is audited in every run.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import untrained

from simic.agent.policy import ActorCritic
from simic.data.prepare import prepare
from simic.errors import SimicError
from simic.evaluation import evaluate, result
from simic.evaluation.evaluate import timeline
from simic.evaluation.headroom import measure
from simic.evaluation.policies import BASELINES, actors
from simic.evaluation.schedules import NONE, OpenLoop, Schedule
from simic.evaluation.scoring import EvaluationSetup, play_for_score
from simic.growth.life.vocabulary import Stage
from simic.training.checkpoint import Checkpoint, Manifest
from simic.training.learned import Learned, describe_specs
from tests import standard

SEEDS, STEPS = 3, 9
POLICIES = ("learned", "learned_sampled", "blind")
RULES = ("static", "random_legal", "patient")


PARAMS = standard.merged(
    {
        "train": {
            "envs": 4, "episode_steps": STEPS, "batches_per_epoch": 2, "batch_size": 32, "price": 2.0,
            "lifecycle": {"training_dwell": 1, "max_seeds": 1}, "actions": {"blueprint": ["norm", "conv_light"]},
        },
        "headroom": {"search_tasks": 2, "policies": RULES, "floors": False},
        "runtime": {"processes": 1, "threads": 1, "backend": "loop"},
        "evaluate": {"eval_seeds": SEEDS, "policies": POLICIES, "static_final": False},
    }
)  # fmt: skip


def evaluated(setup, learned, headroom):
    kept = Checkpoint(Path(), Manifest.model_construct(iteration=7), {})
    return evaluate.evaluate(setup, actors(PARAMS, setup.env, learned), headroom, PARAMS, kept)


def scheduled(setup):
    """Grow one light seed on every host."""
    light = [item.name for item in setup.env.blueprints].index("conv_light")
    return OpenLoop([Schedule((light, NONE, NONE))] * len(setup.tasks))


def alone(setup, actor):
    """Return what an actor did without others beside it."""
    [(_, done)] = play_for_score(setup, {"alone": actor})
    return done


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    prepare(PARAMS.prepare, PARAMS.rng_seed, folder / "prepared", folder / "raw")
    return folder / "prepared"


@pytest.fixture(scope="module")
def setup(prepared):
    """Three policies play side by side."""
    return EvaluationSetup.open(PARAMS, prepared, policies=len(POLICIES))


@pytest.fixture(scope="module")
def learned(setup):
    """Untrained, but with scales that are not the identity."""
    env, actor = setup.env, untrained(setup.env)
    specs = describe_specs(env.action_spec, env.observation_spec)
    return Learned(actor.policy, actor.normalizers, specs, PARAMS.train, 7)


@pytest.fixture(scope="module")
def headroom(prepared):
    return measure(PARAMS, prepared, torch.device("cpu"), lambda *told: None)


@pytest.fixture(scope="module")
def evaluation(setup, learned, headroom):
    return evaluated(setup, learned, headroom)


@pytest.fixture(scope="module")
def played(setup, learned):
    """Return what each policy and rule did, and a schedule."""
    own = actors(PARAMS, setup.env, learned) | {name: BASELINES[name](setup.env) for name in RULES}
    return {
        name: alone(setup, actor) for name, actor in {**own, "schedule": scheduled(setup)}.items()
    }


def test_same_checkpoint_and_seeds_give_the_same_bytes(evaluation, prepared, learned, headroom):
    fresh = EvaluationSetup.open(PARAMS, prepared, policies=len(POLICIES))
    assert evaluated(fresh, learned, headroom).to_json() == evaluation.to_json()


def test_a_policy_scores_the_same_whoever_else_is_evaluated_and_in_headroom_too(evaluation, played):
    for name in (*POLICIES, *RULES):
        assert played[name].score == evaluation.policies[name].per_seed, name


def test_all_policies_meet_the_same_hosts_and_data(setup, played):
    """No op changes the committed network in the first epoch, so after it all must agree to the bit."""
    firsts = {
        name: timeline(setup.env, done, 0).committed_accuracy_pct[0]
        for name, done in played.items()
    }
    assert len(firsts) == 7 and len(set(firsts.values())) == 1, firsts


def test_other_rng_seed_gives_other_hosts(prepared, evaluation):
    assert (
        len(set(evaluation.policies["static"].per_seed.val_accuracy_pct)) > 1
    )  # seeds are different hosts
    other = EvaluationSetup.open(PARAMS.model_copy(update={"rng_seed": 2}), prepared)
    assert (
        alone(other, BASELINES["static"](other.env)).score != evaluation.policies["static"].per_seed
    )


def test_counts_agree_with_the_timeline(setup, played):
    """Of the first host."""
    for name, done in played.items():
        seeds, seen = done.score, timeline(setup.env, done, 0)
        ops = [d.op for d in seen.decisions if d.refused_by_gate is None]
        assert seeds.germinated[0] == ops.count("GERMINATE"), name
        assert seeds.fossilized[0] == ops.count("FOSSILIZE"), name
        stages = np.array([[0] * setup.env.host.slots, *seen.stages])
        assert (
            seeds.pruned[0] == ((stages[1:] == Stage.PRUNED) & (stages[:-1] != Stage.PRUNED)).sum()
        ), name
        assert len(seen.stages) == len(seen.live_accuracy_pct) == STEPS
        assert all(decision.blueprint is not None for decision in seen.decisions), name


def test_shown_are_the_hosts_that_won_most_and_lost_most_over_the_common_schedule(
    evaluation, headroom
):
    own, bare = evaluation.policies["learned"].per_seed, headroom.host.params

    def score(accuracy, params):
        return accuracy - 2.0 * (params - bare) / bare

    def of_schedule(table, row, schedule):
        return score(table[row][schedule], headroom.params[row][schedule])

    gains = {
        row: score(own.test_accuracy_pct[row], own.params[row])
        - of_schedule(headroom.test_pct, row, headroom.common)
        for row in range(SEEDS)
    }
    order = sorted(gains, key=lambda row: -gains[row])
    assert [case.row for case in evaluation.cases] == [order[0], order[-1]]
    for case in evaluation.cases:
        # Of one task each host has an oracle of its own, chosen on another host.
        chosen = max(
            range(len(headroom.schedules)),
            key=lambda k: of_schedule(headroom.choosing_val_pct, case.row, k),
        )
        assert case.gain == pytest.approx(gains[case.row])
        assert case.oracle == headroom.schedules[chosen]
        assert case.oracle_score == pytest.approx(of_schedule(headroom.test_pct, case.row, chosen))


def test_file_round_trip_and_damage(evaluation, tmp_path):
    path = tmp_path / "evaluation.json"
    path.write_text(evaluation.to_json())
    assert result.read(path) == evaluation
    tree = json.loads(path.read_text())
    for damage in (
        {**tree, "schema_version": 3},
        {**tree, "surprise": 1},
        {**tree, "policies": None},
        {**tree, "rows": tree["rows"][1:]},
    ):
        path.write_text(json.dumps(damage))
        with pytest.raises(SimicError, match=r"evaluation\.json: not an evaluation of schema 10"):
            result.read(path)
    path.write_text(evaluation.to_json()[:100])
    with pytest.raises(SimicError, match="not an evaluation"):
        result.read(path)
    with pytest.raises(SimicError, match="no such file; run simic evaluate first"):
        result.read(tmp_path / "absent.json")


def test_a_policy_of_another_task_is_refused(setup, learned):
    spec = learned.policy.observation_spec
    other = replace(spec, features=spec.features + 1)
    policy = ActorCritic(learned.policy.action_spec, other, PARAMS.train.policy, 5)
    with pytest.raises(SimicError, match=r"was trained on .* slots.*; this is "):
        actors(PARAMS, setup.env, replace(learned, policy=policy))


def test_hand_rules_meet_measured_contributions(played):
    """A seed in HOLDING has been tried without, so that a rule can keep it; one that does not act has not."""
    shown = [turn.situation for turn in played["schedule"].turns]
    stage = torch.stack([situation.slots.stage for situation in shown])
    contribution = torch.stack([situation.slots.contribution for situation in shown])
    assert (stage == Stage.HOLDING).any() and contribution[stage == Stage.HOLDING].isfinite().all()
    assert contribution[stage == Stage.TRAINING].isnan().all()
    assert [situation.step for situation in shown] == list(range(STEPS))
