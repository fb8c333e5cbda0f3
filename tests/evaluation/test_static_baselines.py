"""Networks that do not grow are trained, scored and counted exactly as hosts are, on the tasks of the rows."""

from dataclasses import replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tiny import TASKS, tiny_env, tiny_train

from simic.data.batches import Dataset, HeldOut, load_held_out, load_split
from simic.envs.growth_env import GrowthEnv
from simic.envs.play import play
from simic.evaluation import static_baselines as module
from simic.evaluation.policies import Static
from simic.evaluation.schedules import NONE, OpenLoop, Schedule
from simic.evaluation.scoring import EVALUATION_ITERATION
from simic.evaluation.static_baselines import (
    LINEAR,
    Regime,
    filled,
    from_the_start,
    linear_classifier,
    static_baselines,
    static_final,
)
from simic.growth.batch.groups import SlotState
from simic.growth.life.vocabulary import Slots, Stage
from simic.growth.networks.hosts import PRESETS
from simic.params import Runtime
from tests.standard import Host, Lifecycle, Params

SMALL = ((4,), (4, 8))
SHORT = 6  # steps
DEVICE = torch.device("cpu")


@pytest.fixture(scope="module")
def held_out(bank):
    return load_held_out(bank)


@pytest.fixture
def params(monkeypatch):
    monkeypatch.setattr(module, "CNN_WIDTHS", SMALL)
    return Params(train=tiny_train(), runtime=Runtime(cores=1))


def separable(samples, seed, classes=(2, 3)):
    """Two tasks of 5 features whose class is where one feature is largest, or 1 against 0 by its sign."""
    x = torch.randn(2 * samples, 1, 1, 5, generator=torch.Generator().manual_seed(seed))
    signs, places = (x[:samples, 0, 0, 0] > 0).long(), x[samples:, 0, 0, :3].argmax(dim=1)
    return Dataset(x, torch.cat((signs, places)), 3, classes)


def test_a_linear_classifier_solves_what_is_linear_and_has_a_weight_for_each_input_and_class():
    splits = [separable(400, seed) for seed in range(3)]
    floor = linear_classifier(HeldOut([], *splits), torch.tensor([1, 0, 1]))
    assert min(floor.test_accuracy_pct) > 95
    # Of 2 classes one row of weights suffices: 5 + 1; of 3 classes 3 · (5 + 1). FLOPs: 2 for each weight.
    assert floor.params == (18, 6, 18) and floor.flops_per_sample == (30, 10, 30)
    assert floor.test_accuracy_pct[0] == floor.test_accuracy_pct[2] and floor.epochs == (0, 0, 0)
    assert all(
        cost % (3 * 400 * flops) == 0
        for cost, flops in zip(floor.training_flops, (30, 10, 30), strict=True)
    )


def test_the_penalty_is_chosen_on_validation_and_the_test_split_has_no_say(held_out):
    tasks = torch.arange(3)
    floor = linear_classifier(held_out, tasks)
    wrong = replace(held_out.test, y=(held_out.test.y + 1) % 2)
    relabelled = linear_classifier(replace(held_out, test=wrong), tasks)
    assert (floor.params, floor.training_flops) == (relabelled.params, relabelled.training_flops)
    # Two classes: every answer that was right is wrong now.
    assert floor.test_accuracy_pct[0] == pytest.approx(
        100 - relabelled.test_accuracy_pct[0], abs=1e-3
    )
    # With validation labels that say the opposite, another penalty is best: the scores change.
    turned = replace(held_out, val=replace(held_out.val, y=1 - held_out.val.y % 2))
    assert linear_classifier(turned, tasks).test_accuracy_pct != floor.test_accuracy_pct


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_linear_classifier_is_the_best_of_five_penalties_on_all_training_rows(held_out):
    def rows(data: Dataset, task: int):
        part = slice(task * len(data), (task + 1) * len(data))
        return data.x[part].flatten(1).double().numpy(), data.y[part].numpy()

    expected = []
    for task in range(3):
        train, val, test = (
            rows(data, task) for data in (held_out.train, held_out.val, held_out.test)
        )
        models = [
            LogisticRegression(C=strength, max_iter=500).fit(*train)
            for strength in (0.0001, 0.001, 0.01, 0.1, 1.0)
        ]
        best = max(models, key=lambda model: model.score(*val))
        expected.append(100.0 * best.score(*test))
    floor = linear_classifier(held_out, torch.arange(3))
    assert floor.test_accuracy_pct == pytest.approx(expected, abs=1e-3)


def test_static_networks_are_hosts_that_never_grow_bit_for_bit(held_out, params):
    tasks = torch.tensor([0, 1, 2, 1])
    floor = static_baselines(params, held_out, tasks, DEVICE, (SHORT,))[SHORT]
    assert list(floor) == [LINEAR, "static cnn, [4]", "static cnn, [4, 8]"]
    host = Host(family="cnn", preset="baseline", widths=(4, 8), kernel_size=3)
    env = GrowthEnv(
        tiny_train(host=host, episode_steps=SHORT),
        params.rng_seed,
        held_out.train,
        held_out.val,
        torch.arange(4),
    )
    play(env, Static(), EVALUATION_ITERATION, lambda *step: None, tasks)
    expected, _ = env.committed(held_out.test)
    network = floor["static cnn, [4, 8]"]
    assert network.test_accuracy_pct == tuple(
        round(value, 4) for value in expected.double().tolist()
    )
    assert network.params == (env.host.params,) * 4
    # 64 training samples, forward and backward, in each of the steps.
    assert network.training_flops == (SHORT * 64 * 3 * env.host.flops_per_sample,) * 4


def test_tokens_have_no_linear_floor_and_no_floors_are_none(held_out, params):
    x = torch.randint(256, (3 * 96, 8), generator=torch.Generator().manual_seed(0))
    tokens = Dataset(x, x, 256, (256,) * 3)
    tree = params.model_copy(
        update={"train": tiny_train(host=Host(family="transformer"), episode_steps=1)}
    )
    floor = static_baselines(
        tree, HeldOut([], tokens, tokens, tokens), torch.tensor([0, 2]), DEVICE, (1,)
    )[1]
    assert list(floor) == [f"static transformer, {preset}" for preset in PRESETS["transformer"]]
    silent = params.model_copy(
        update={"headroom": params.headroom.model_copy(update={"floors": False})}
    )
    assert static_baselines(silent, held_out, torch.arange(3), DEVICE, (1, 2)) == {1: {}, 2: {}}


# --- the network that a policy ended with -----------------------------------------------------------------------------


def test_nothing_is_trained_or_scored_on_another_split_than_its_own(bank, held_out, regime):
    env = tiny_env(bank)
    env.reset()
    population = env.population
    tasks = torch.arange(3)
    swapped = replace(regime, test=held_out.val)
    epochs = torch.ones(1, TASKS, dtype=torch.int64)
    order = torch.zeros(env.num_envs, 1, 1, dtype=torch.int64)
    slots = Slots.empty(TASKS, env.host.slots)
    for wrong in (
        lambda: env.committed(held_out.val),
        lambda: GrowthEnv(tiny_train(), 1, held_out.test, held_out.val),
        lambda: GrowthEnv(tiny_train(), 1, held_out.train, held_out.test),
        lambda: population.train_epoch(env.slots, held_out.test, order),
        lambda: linear_classifier(replace(held_out, test=held_out.val), tasks),
        lambda: linear_classifier(replace(held_out, val=held_out.test), tasks),
        lambda: swapped.run(population, slots, epochs),
    ):
        with pytest.raises(ValueError, match=r"data of the split '.*' where that of '.*' belongs"):
            wrong()


def test_modules_that_are_there_from_the_start_act_in_full():
    slots = filled(3, 2, DEVICE)
    state = SlotState.read(slots)
    assert state.acting.all() and (slots.alpha == 1).all()
    assert (slots.stage == Stage.FOSSILIZED).all() and (slots.blueprint == 0).all()


ITERATION = 11
LIFECYCLE = Lifecycle(training_dwell=1, max_seeds=2)


@pytest.fixture(scope="module")
def regime(bank):
    """Scored on the validation split: the test split of a suite's training tasks does not exist."""
    test = replace(load_split(bank, "val"), split="test")
    train = load_split(bank, "train")
    return Regime(tiny_train(lifecycle=LIFECYCLE), train, test, torch.arange(TASKS), ITERATION)


def test_kept_seeds_are_there_from_the_start_with_the_weights_they_began_with(bank, regime):
    env = tiny_env(bank, lifecycle=LIFECYCLE)
    kind = [item.name for item in env.blueprints].index("bottleneck")
    schedules = [
        Schedule((kind, kind, NONE), 1)
    ] * TASKS  # the first slot's seed, then the second's
    play(env, OpenLoop(schedules), ITERATION, lambda *step: None, torch.arange(TASKS))
    fossilized = env.slots.stage == Stage.FOSSILIZED
    assert fossilized.any(dim=1).all()
    slots = from_the_start(env.slots)
    assert torch.equal(slots.blueprint, torch.where(fossilized, env.slots.blueprint, -1))
    assert (slots.alpha[fossilized] == 1).all() and (
        slots.stage[~fossilized] == Stage.DORMANT
    ).all()
    env.population.reset(ITERATION, torch.arange(TASKS))
    env.population.germinate(env.slots, fossilized, env.training_data)
    weights = [[env.population.named_parameters(env.slots, row) for row in range(TASKS)]]
    for learning_rate in (0.0, 0.05):
        env.population.learning_rate = learning_rate
        regime.run(env.population, slots, torch.ones(1, TASKS, dtype=torch.int64))
        weights.append([env.population.named_parameters(slots, row) for row in range(TASKS)])
    for begun, still, moved in zip(*weights, strict=True):
        assert begun.keys() == still.keys() and any(name.startswith("joints") for name in begun)
        assert all(torch.equal(begun[name], still[name]) for name in begun)
        assert not any(torch.equal(begun[name], moved[name]) for name in begun if ".seed." in name)


def test_the_final_network_is_trained_for_the_episodes_epochs_and_for_what_its_flops_pay(
    bank, regime
):
    env = tiny_env(bank)
    slots = Slots.empty(TASKS, env.host.slots)
    epoch = regime.epoch_flops_per_flop * env.population.host.flops_per_sample
    # The third row has less than an epoch, and is trained for one.
    flops = torch.tensor([2, 3, 0, *[1] * (TASKS - 3)]) * epoch
    equal, affordable = static_final(env.population, regime, slots, flops, epochs=4)
    assert equal.epochs == (4,) * TASKS
    assert affordable.epochs == (2, 3, *[1] * (TASKS - 2))


def test_each_row_is_scored_after_its_own_epochs(bank, regime):
    env = tiny_env(bank)
    slots, epochs = Slots.empty(TASKS, env.host.slots), torch.arange(TASKS) + 1
    [together] = regime.run(env.population, slots, epochs[None])
    assert together.epochs == tuple(range(1, TASKS + 1))
    for row in (0, 3):
        [single] = regime.run(env.population, slots, torch.full((1, TASKS), row + 1))
        assert single.test_accuracy_pct[row] == together.test_accuracy_pct[row]
