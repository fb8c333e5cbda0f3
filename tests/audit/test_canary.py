"""The canary wins with this code what its limit asks for, and does not with code that teaches or learns wrongly."""

import json

import pytest

from simic.audit import canary as canaries
from simic.audit import limits
from simic.audit.checks.canaries import LIMITS
from simic.errors import SimicError
from simic.params import Train
from simic.training import survey, trainer
from tests.helpers import ROOT

MEASURED = json.loads((ROOT / "benchmarks/results/canary.json").read_text(encoding="utf-8"))


def won(way):
    found = canaries.canary(way)
    assert not found.reason
    return found.won_pct


def test_limits_are_what_clean_code_won_at_least():
    assert MEASURED["seeds"] >= 20
    for way, limit in LIMITS.items():
        assert float(limit) == pytest.approx(MEASURED[way]["worst_pct"] / limits.ROOM, abs=0.05)


def test_a_run_is_tried_in_the_ways_that_it_trained(monkeypatch):
    monkeypatch.setattr(canaries, "canary", lambda way: way)
    both = {"survey": 1, "warm_start": 1, "twins": 2, "envs": 4}
    assert canaries.canaries(Train(iterations=8)) == ("PPO",)
    assert canaries.canaries(Train(**both, iterations=2)) == ("taught",)
    assert canaries.canaries(Train(**both, iterations=3)) == ("taught", "PPO")


def test_a_canary_that_cannot_be_trained_says_why(monkeypatch):
    def refuse(session):
        raise SimicError("no row of the mask is open")

    monkeypatch.setattr(trainer, "train", refuse)
    found = canaries.canary("taught")
    assert (found.won_pct, found.reason) == (None, "no row of the mask is open")


@pytest.mark.slow
def test_what_is_taught_is_learned():
    assert won("taught") > LIMITS["taught"]


@pytest.mark.slow
def test_where_the_survey_takes_the_worst_nothing_is_learned(monkeypatch):
    best = survey.best_sequence
    monkeypatch.setattr(survey, "best_sequence", lambda curves, tries: best(-curves, tries))
    assert won("taught") < LIMITS["taught"]


@pytest.mark.slow
def test_ppo_finds_what_is_planted_unless_rewards_have_the_other_sign(monkeypatch):
    assert won("PPO") > LIMITS["PPO"]
    estimated = trainer.with_advantages
    monkeypatch.setattr(trainer, "with_advantages", lambda rollout, rewards, *rest: estimated(rollout, -rewards, *rest))
    assert won("PPO") < LIMITS["PPO"]
