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
        "headroom": {"search_tasks": 2, "schedules": 6, "policies": RULES, "floors": False},
        "runtime": {"cores": 1, "threads": 1, "backend": "loop"},
        "evaluate": {"eval_seeds": SEEDS, "policies": POLICIES, "static_final": False},
    }
)  # fmt: skip


def evaluated(setup, learned, headroom):
    checkpoint = Checkpoint(Path(), Manifest.model_construct(iteration=7), {})
    return evaluate.evaluate(
        setup, actors(PARAMS, setup.env, learned), headroom, PARAMS, checkpoint
    )


def scheduled(setup):
    """Grow one light seed on every host."""
    light = [item.name for item in setup.env.blueprints].index("conv_light")
    return OpenLoop([Schedule((light, NONE, NONE))] * len(setup.tasks))


def alone(setup, actor):
    """Return what an actor did without others beside it."""
    [(_, episode)] = play_for_score(setup, {"alone": actor})
    return episode


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
    return measure(PARAMS, prepared, torch.device("cpu"), lambda *progress: None)


@pytest.fixture(scope="module")
def evaluation(setup, learned, headroom):
    return evaluated(setup, learned, headroom)


@pytest.fixture(scope="module")
def episodes(setup, learned):
    """Return what each policy and rule did, and a schedule."""
    players = actors(PARAMS, setup.env, learned) | {
        name: BASELINES[name](setup.env) for name in RULES
    }
    return {
        name: alone(setup, actor)
        for name, actor in {**players, "schedule": scheduled(setup)}.items()
    }


def test_a_policy_scores_the_same_whoever_else_is_evaluated_and_in_headroom_too(
    evaluation, episodes
):
    for name in (*POLICIES, *RULES):
        assert episodes[name].score == evaluation.policies[name].per_seed, name


def test_all_policies_meet_the_same_hosts_and_data(setup, episodes):
    """No op changes the committed network in the first epoch, so after it all must agree to the bit."""
    firsts = {
        name: timeline(setup.env, episode, 0).committed_accuracy_pct[0]
        for name, episode in episodes.items()
    }
    assert len(firsts) == 7 and len(set(firsts.values())) == 1, firsts


def test_counts_agree_with_the_timeline(setup, episodes):
    """Of the first host."""
    for name, episode in episodes.items():
        shown = timeline(setup.env, episode, 0)
        ops = [choice.op for choice in shown.decisions if choice.refused_by_gate is None]
        assert episode.score.germinated[0] == ops.count("GERMINATE"), name
        assert episode.score.fossilized[0] == ops.count("FOSSILIZE"), name
        assert len(shown.stages) == len(shown.live_accuracy_pct) == STEPS
        assert all(choice.blueprint is not None for choice in shown.decisions), name


def test_shown_are_the_hosts_that_won_most_and_lost_most_over_the_common_schedule(
    evaluation, headroom
):
    def scores(accuracy_pct, params):
        bare = headroom.host.params
        return np.array(accuracy_pct) - 2.0 * (np.array(params) - bare) / bare

    learned = evaluation.policies["learned"].per_seed
    test = scores(headroom.test_pct, headroom.params)
    choosing = scores(headroom.choosing_val_pct, headroom.params)
    gains = scores(learned.test_accuracy_pct, learned.params) - test[:, headroom.common]
    order = np.argsort(-gains, kind="stable")
    assert [case.row for case in evaluation.cases] == [order[0], order[-1]]
    for case in evaluation.cases:
        # Of one task each host has an oracle of its own, chosen on another host.
        best = choosing[case.row].argmax()
        assert case.oracle == headroom.schedules[best]
        expected = (gains[case.row], test[case.row, best])
        assert (case.gain, case.oracle_score) == pytest.approx(expected)


def test_file_round_trip_and_damage(evaluation, tmp_path):
    path = tmp_path / "evaluation.json"
    path.write_text(evaluation.to_json())
    assert result.read(path) == evaluation
    tree = json.loads(path.read_text())
    for damage in ({"schema_version": 3}, {"surprise": 1}, {"rows": tree["rows"][1:]}):
        path.write_text(json.dumps(tree | damage))
        with pytest.raises(SimicError, match=r"evaluation\.json: not an evaluation of schema 10"):
            result.read(path)
    with pytest.raises(SimicError, match="no such file; run simic evaluate first"):
        result.read(tmp_path / "absent.json")


def test_a_policy_of_another_task_is_refused(setup, learned):
    spec = learned.policy.observation_spec
    changed = replace(spec, features=spec.features + 1)
    policy = ActorCritic(learned.policy.action_spec, changed, PARAMS.train.policy, 5)
    with pytest.raises(SimicError, match=r"was trained on .* slots.*; this is "):
        actors(PARAMS, setup.env, replace(learned, policy=policy))


def test_hand_rules_meet_measured_contributions(episodes):
    """A seed in HOLDING has been tried without, so that a rule can keep it; one that does not act has not."""
    shown = [turn.situation for turn in episodes["schedule"].turns]
    stage = torch.stack([situation.slots.stage for situation in shown])
    contribution = torch.stack([situation.slots.contribution for situation in shown])
    assert (stage == Stage.HOLDING).any() and contribution[stage == Stage.HOLDING].isfinite().all()
    assert contribution[stage == Stage.TRAINING].isnan().all()
    assert [situation.step for situation in shown] == list(range(STEPS))
