"""What the policies without learning are shown when they are evaluated."""

import torch

from simic.data.prepare import prepare
from simic.evaluation import evaluate
from simic.evaluation.baselines import FixedSchedule
from simic.evaluation.evaluate import EvaluationSetup
from simic.growth.life.vocabulary import Stage
from simic.params import Params


def small() -> Params:
    tree = Params().model_dump()
    tree["train"] |= {"envs": 4, "episode_steps": 10, "batches_per_epoch": 2, "batch_size": 32}
    tree["train"]["lifecycle"] |= {"training_dwell": 1}
    tree["evaluate"] |= {"eval_seeds": 3, "policies": ("static",)}
    return Params.model_validate(tree)


class Watched(FixedSchedule):
    """Grows by the calendar and remembers what it was shown."""

    def start(self, episode):
        super().start(episode)
        self.shown = []

    def act(self, situation):
        self.shown.append(situation)
        return super().act(situation)


def test_rules_of_thumb_meet_measured_contributions(tmp_path):
    """A seed in HOLDING has been tried without, so that a rule can keep it; one that does not act has not."""
    params = small()
    prepare(params.prepare, params.rng_seed, tmp_path / "prepared", tmp_path)
    setup = EvaluationSetup.open(params, tmp_path / "prepared")
    actor = Watched("cnn", params.train.lifecycle, (0, 1))
    evaluate.play_for_score(setup, actor)
    stage = torch.stack([situation.slots.stage for situation in actor.shown])
    contribution = torch.stack([situation.slots.contribution for situation in actor.shown])
    assert (stage == Stage.HOLDING).any()
    assert contribution[stage == Stage.HOLDING].isfinite().all()
    assert contribution[stage == Stage.TRAINING].isnan().all()
    assert [situation.step for situation in actor.shown] == list(range(10))
