"""The canary wins with this code what its limit asks for, and does not with code that learns wrongly."""

import json

import pytest

from simic.audit import limits
from simic.certify.canary import LEAST_WON_PCT, canary
from simic.training import trainer
from tests.helpers import ROOT

MEASURED = json.loads((ROOT / "benchmarks/results/canary.json").read_text(encoding="utf-8"))


def test_the_limit_is_what_clean_code_won_at_least():
    assert MEASURED["seeds"] >= 20
    assert pytest.approx(MEASURED["worst_pct"] / limits.ROOM, abs=0.05) == LEAST_WON_PCT


@pytest.mark.slow
def test_ppo_finds_what_is_planted_unless_rewards_have_the_other_sign(monkeypatch):
    assert canary().sound
    estimated = trainer.with_advantages
    monkeypatch.setattr(trainer, "with_advantages", lambda rollout, rewards, *rest: estimated(rollout, -rewards, *rest))
    assert not canary().sound
