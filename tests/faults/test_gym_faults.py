"""Faults of the learner, planted into a training on CartPole: the audit refutes the run, as it does for growth."""

import pytest

from simic import params
from simic.audit.audit import checks
from simic.audit.findings import PROOF
from tests.faults.catalogue import BY_ID, maths
from tests.faults.runner import Laboratory
from tests.helpers import ROOT

SMALL = [
    "prepare.task=gym", "prepare.gym.id=CartPole-v1", "train.envs=8", "train.episode_steps=96", "train.iterations=4",
    "train.horizon=null", "train.policy={core: lstm, encoder_units: 16, core_units: 16, head_units: 16, critic: own}",
    "train.ppo.normalize_rewards=true", "train.ppo.gamma=0.95", "train.ppo.gae_lambda=0.8", "train.stop_on=never",
    "train.ppo.max_grad_norm=0.1", "evaluate.policies=[learned]", "evaluate.eval_seeds=2", "evaluate.epochs=null",
    "runtime.progress=none", "runtime.threads=1",
]  # fmt: skip
# With one head the ratio of a head is that of the action; with autoreset the value after a terminal step is 0 anyhow.
NO_FAULT_HERE = ("ratio-per-head", "bootstrap-at-terminal")


NAMES = [name for name in maths.FAULTS if name not in NO_FAULT_HERE]
OF_PROOF = {check.id for check in checks(of_gym=True) if check.layer in PROOF}


def tree(rng_seed: int) -> params.Params:
    return params.load(ROOT / "params.yaml", [*SMALL, f"rng_seed={rng_seed}"])


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    made = Laboratory(tmp_path_factory.mktemp("cartpole"), (1,), tree)
    made.run_clean(1)
    return made


# A clean run, and a record that was altered, are in tests/audit/test_gym_audit.py.
@pytest.mark.slow
def test_a_clean_run_is_certified(laboratory: Laboratory) -> None:
    assert not OF_PROOF & laboratory.clean[1].keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_fault_of_the_learner_is_found_on_cartpole(name: str, laboratory: Laboratory) -> None:
    assert OF_PROOF & laboratory.try_out(BY_ID[f"maths-{name}"]).judgement.by.keys()
