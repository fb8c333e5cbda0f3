"""The canary wins with this code what its limit asks for, and does not with code that learns wrongly."""

import json

import pytest

from simic.audit import canary, limits
from simic.errors import SimicError
from simic.training import trainer
from tests.helpers import ROOT

MEASURED = json.loads((ROOT / "benchmarks/results/canary.json").read_text(encoding="utf-8"))


def won():
    found = canary.canary()
    assert not found.reason
    return found.won_pct


def test_the_limit_is_what_clean_code_won_at_least():
    assert MEASURED["seeds"] >= 20
    assert float(limits.CANARY) == pytest.approx(MEASURED["worst_pct"] / limits.ROOM, abs=0.05)


def test_a_canary_that_cannot_be_trained_says_why(monkeypatch):
    def refuse(session):
        raise SimicError("no row of the mask is open")

    monkeypatch.setattr(trainer, "train", refuse)
    found = canary.canary()
    assert (found.won_pct, found.reason) == (None, "no row of the mask is open")


@pytest.mark.slow
def test_ppo_finds_what_is_planted_unless_rewards_have_the_other_sign(monkeypatch):
    assert won() > limits.CANARY
    estimated = trainer.with_advantages
    monkeypatch.setattr(trainer, "with_advantages", lambda rollout, rewards, *rest: estimated(rollout, -rewards, *rest))
    assert won() < limits.CANARY
