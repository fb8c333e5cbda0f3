"""Champion against challenger: the same fresh hosts for both, validation splits alone, one task, one space."""

import shutil
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch
from scipy.stats import t
from tiny import LIFECYCLE, SMALL, small_learned, tiny_train

from simic.data.batches import HELD_OUT_FILE, TEST_FILE, data_hash, load_held_out, load_split
from simic.data.prepare import prepare
from simic.envs.growth_env import GrowthEnv
from simic.envs.patient import Patient
from simic.envs.play import play
from simic.errors import SimicError
from simic.evaluation import promotion
from simic.evaluation.policies import RandomLegal, Static
from simic.evaluation.promotion import PROMOTION_ITERATION, Entrant, contest
from simic.params import Host, Runtime
from simic.training.learned import Learned
from tests.standard import Evaluate, Lifecycle, Params, Prepare

TRAIN = tiny_train(policy=SMALL, episode_steps=9, batches_per_epoch=1)
TREE = Params(train=TRAIN, evaluate=Evaluate(eval_seeds=6), runtime=Runtime(threads=1, processes=1))


class Patiently(Learned):
    """A policy that acts as the patient rule does."""

    def actor(self, greedy):
        return Patient(LIFECYCLE, ((0, 0),))


def entrant(bank, name="challenger", sha256="a", train=TRAIN, kind=Learned):
    return Entrant(name, small_learned(train, kind=kind), sha256, data_hash(bank))


def alone(tree, bank, actor, iteration):
    """The slow way: one policy, one host at a time; points of the three validation tasks, which have one host each."""
    found = []
    for host in range(3):
        env = GrowthEnv(tree.train, 1, load_split(bank, "train"), load_split(bank, "val"), torch.tensor([host]))
        play(env, actor(env), iteration, lambda *_: None, tasks=torch.tensor([6 + host]))
        found.append(float(env.state.measured.committed_accuracy[0]))
    return np.array(found)


def test_differences_are_those_of_both_played_alone_on_the_hosts_of_their_pair(bank):
    tree = TREE.model_copy(update={"evaluate": Evaluate(eval_seeds=3)})
    patient = entrant(bank, kind=Patiently)
    found = contest(tree, bank, patient, None)
    assert (found.hosts, found.tasks) == (3, 3)
    assert [each.second for each in found.compared] == ["random_legal", "static"]
    own = alone(tree, bank, lambda env: patient.learned.actor(True), found.iteration)
    floors = {"static": lambda env: Static(), "random_legal": lambda env: RandomLegal(env.action_spec)}
    for each in found.compared:
        difference = own - alone(tree, bank, floors[each.second], found.iteration)
        half = t.ppf(0.975, 2) * difference.std(ddof=1) / sqrt(3)  # of 3 tasks
        interval = each.difference
        assert difference.any() and interval.estimate == pytest.approx(difference.mean(), abs=1e-6)
        assert (interval.low, interval.high) == pytest.approx((difference.mean() - half, difference.mean() + half))
        assert each.pairs == 3


def test_with_a_champion_it_alone_is_the_opponent(bank):
    found = contest(TREE, bank, entrant(bank, kind=Patiently), entrant(bank, "champion", "b", kind=Patiently))
    [each] = found.compared
    assert (each.second, each.difference.low) == ("champion", 0.0)  # it plays as the champion does


def test_every_pair_has_hosts_of_its_own_far_from_those_of_training(bank, monkeypatch):
    drawn = []
    monkeypatch.setattr(promotion, "_scores", lambda env, players, hosts: drawn.append(hosts.iteration) or SCORES)
    a, b = entrant(bank, sha256="a"), entrant(bank, "champion", sha256="b")
    for pair in ((a, b), (b, a), (a, None), (a, b)):
        contest(TREE, bank, *pair)
    assert drawn[0] == drawn[3] and len(set(drawn)) == 3
    assert min(drawn) >= PROMOTION_ITERATION > 1 << 41  # validation's; evaluation's is below


SCORES = {name: np.arange(3.0) for name in ("challenger", "champion", "random_legal", "static")}


def test_held_out_data_are_neither_needed_nor_to_be_had(bank, tmp_path, monkeypatch):
    bank = shutil.copytree(bank, tmp_path / "bank")
    both = entrant(bank), entrant(bank, "champion", "b")

    def peep(*_):
        load_held_out(bank)

    monkeypatch.setattr(promotion, "_scores", peep)
    with pytest.raises(SimicError, match=r"held-out data are closed: who is champion is decided on validation splits$"):
        contest(TREE, bank, *both)
    load_held_out(bank)  # open again
    monkeypatch.undo()
    for name in (TEST_FILE, HELD_OUT_FILE):
        (bank / name).unlink()
    assert contest(TREE, bank, *both).tasks == 3


def test_a_data_set_alone_is_decided_on_its_validation_split_host_by_host(tmp_path):
    digits = tmp_path / "digits"
    prepare(Prepare(task="digits"), 1, digits, tmp_path)
    train = TRAIN.model_copy(update={"episode_steps": 4})
    found = contest(TREE.model_copy(update={"train": train}), digits, entrant(digits, train=train), None)
    assert (found.hosts, found.tasks) == (6, 1)
    assert {each.pairs for each in found.compared} == {6}


def test_a_champion_of_another_task_of_other_rules_or_of_another_space_is_refused(bank):
    foreign = replace(entrant(bank, "champion (version 3)", "b"), data_sha256="0" * 64)
    rules = TRAIN.model_copy(update={"lifecycle": Lifecycle(max_seeds=2)})
    other = entrant(bank, "champion", "b", train=tiny_train(host=Host(family="mlp", preset="baseline")))
    in_this_host = replace(other.learned, train=TRAIN)  # its params say so, its network does not
    for champion, words in (
        (foreign, rf"champion \(version 3\): was trained on data 0{{12}}, {bank} is {data_hash(bank)[:12]}"),
        (
            entrant(bank, "champion", "b", train=rules),
            r"champion: was trained with train\.lifecycle = \{.*\.yaml has \{",
        ),
        (replace(other, learned=in_this_host), "champion: the policy after 3 iterations was trained on .*blueprints"),
    ):
        with pytest.raises(SimicError, match=f"^{words}") as caught:
            contest(TREE, bank, entrant(bank), champion)
        assert "\n" not in str(caught.value)
