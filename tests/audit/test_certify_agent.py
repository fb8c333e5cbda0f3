"""Clean training agrees with the reference of the learner in every number; a fault of one line does not."""

from pathlib import Path

import pytest

from simic.audit.certify_agent import certify_agent
from simic.audit.comparison import Comparison
from simic.data.prepare import prepare
from simic.params import Governor, HostOptimizer, Lifecycle, Params, Policy, PPOParams, Prepare, Reward, Train
from tests.helpers import some

from .agent_faults import FAULTS

SMALL = {"encoder_units": 12, "core_units": 8, "head_units": 8, "embedding_units": 2}
FAST = PPOParams(
    epochs=2, minibatches=2, learning_rate=0.01, target_kl=None, max_grad_norm=0.1, learning_rate_schedule="linear"
)
QUICK = Lifecycle(training_dwell=1, max_seeds=1, sequential_development=False, embargo_steps=0)
HOSTS = HostOptimizer(name="adamw", learning_rate=0.01)
FRAIL = Governor(sensitivity_sigmas=0.01, loss_multiplier=0.01, absolute_loss_chances=0.9, min_history=2)


def settings(**changes) -> Params:
    common = {"lifecycle": QUICK, "policy": Policy(**SMALL), "ppo": FAST, "host_optimizer": HOSTS}
    own = {"episode_end": "truncate", "episode_steps": (5, 16), "reward": Reward(mode="score")}
    return Params(train=Train(**(own | common | changes)))


SETTINGS = {
    # Truncated episodes of drawn length, a masked style, no limit of the divergence; hosts that break end early.
    "free": settings(governor=FRAIL, actions={"style": ("linear_add", "sigmoid_add")}),
    # Terminal ends, a ratio for each head, shaped rewards, another memory, a detached critic; stopped by KL.
    "stopped": settings(
        episode_end="terminate",
        reward=Reward(mode="shaped"),
        policy=Policy(core="gru", critic="detached", **SMALL),
        ppo=FAST.model_copy(
            update={
                "target_kl": 1e-3,
                "ratio": "per_head",
                "head_weight": "mean",
                "entropy_scale": {"op": 2.0},
                "entropy_floor": {"op": 0.99, "slot": 0.9},
                "gradient_accumulation": 2,
            }
        ),
        governor=FRAIL,
    ),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "prepared"
    prepare(Prepare(), 1, folder, folder.parent)
    return folder


def failed(found: tuple[Comparison, ...]) -> list[str]:
    return [f"{each.what}, {each.where}: {each.deviation:.3g}" for each in found if not each.ok]


@pytest.mark.parametrize("name", some([*SETTINGS], "free"))
def test_clean_training_is_the_reference(name, prepared, tmp_path):
    found = certify_agent(SETTINGS[name], prepared, tmp_path)
    assert failed(found) == []
    compared = {each.what for each in found}
    assert {"weights", "advantages", "actions sampled", "actions greedy", "state chain", "state restored"} <= compared
    assert {"learning rate", "what the critic was told kept"} <= compared


@pytest.mark.slow
@pytest.mark.parametrize("rng_seed", range(2, 7))
@pytest.mark.parametrize("name", SETTINGS)
def test_clean_training_is_the_reference_with_other_seeds(name, rng_seed, prepared, tmp_path):
    found = certify_agent(SETTINGS[name].model_copy(update={"rng_seed": rng_seed}), prepared, tmp_path)
    assert failed(found) == []


@pytest.mark.parametrize("name", some([*FAULTS], *[*FAULTS][1::24]))
def test_a_fault_is_caught(name, prepared, tmp_path, monkeypatch):
    setting, plant = FAULTS[name]
    plant(monkeypatch)
    assert failed(certify_agent(SETTINGS[setting], prepared, tmp_path)) != []
