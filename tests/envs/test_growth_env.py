"""The environment on a real population and real data: legality, accounting, measurements, rollbacks."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simic.data.batches import Dataset
from simic.envs import growth_env, rewards
from simic.envs.attribution import COMMITTED, MAIN, WITHOUT, configurations
from simic.envs.governor import Cause
from simic.errors import SimicError
from simic.growth.lifecycle import LIVE_STAGES, TRANSITIONS, in_stages
from simic.growth.population import Population
from simic.growth.vocabulary import Action, Op, Stage
from simic.params import Lifecycle, Reward

FAMILIES = ("cnn", "mlp")


@pytest.fixture
def transitions(monkeypatch):
    """Every transition the environment pays for, as it pays."""
    seen = []
    pay = rewards.components

    def remember(mode, transition, setting):
        seen.append((transition, setting))
        return pay(mode, transition, setting)

    monkeypatch.setattr(growth_env.rewards, "components", remember)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_legal_walk_keeps_every_law(make_env, play, transitions, family):
    env = make_env(envs=16, family=family, steps=24, backend="auto")
    budget = env.train.lifecycle.param_budget * env.host.params
    executed, refused = Counter(), 0
    for (_, actions, (observation, reward, *_, info)), (transition, setting) in zip(
        play(env), transitions, strict=True
    ):
        before, after = transition.before.stage, transition.after.stage
        sampled = torch.where(info.valid, actions[:, 0], int(Op.WAIT))
        was_refused = (info.gate >= 0) & ~info.gate_passed
        assert torch.equal(info.effective_op, torch.where(was_refused, int(Op.WAIT), sampled))
        executed.update(info.effective_op.tolist())
        refused += int(was_refused.sum())
        for a, b, panicked in zip(before.tolist(), after.tolist(), info.panicked.tolist(), strict=True):
            for old, new in zip(a, b, strict=True):
                assert old == new or Stage(new) in TRANSITIONS[Stage(old)] or panicked, (Stage(old), Stage(new))
        seed_params = transition.seed_params_after
        assert torch.equal(info.params, env.host.params + seed_params.sum(dim=1))
        assert (seed_params.sum(dim=1) <= budget).all() and (seed_params >= 0).all()
        assert (in_stages(after, LIVE_STAGES).sum(dim=1) <= env.host.slots).all()
        total = sum(info.components.values())
        assert (total - reward).abs().max() < 1e-6 and reward.isfinite().all()
        assert (reward.abs() <= 10).logical_or(info.panicked).all()
        for mode, names in rewards.MODES.items():
            assert all(rewards.TERMS[name](transition, setting).isfinite().all() for name in names), mode
        spec = env.observation_spec
        assert observation.features.shape == (16, spec.features) and observation.features.isfinite().all()
        assert observation.categories.shape == (16, spec.categories)
    assert set(executed) == set(map(int, Op)) and refused > 0  # the walk saw everything it is about


@pytest.mark.parametrize("ending", ["terminate", "truncate"])
def test_shaping_telescopes_over_played_episodes(make_env, play, transitions, ending):
    env = make_env(envs=12, steps=12, episode_end=ending)
    steps = play(env)
    gamma, weight = env.setting.gamma, env.train.reward.pbrs_weight
    paid = sum(gamma**t * step[2][4].components["shaping"] for t, step in enumerate(steps))
    # The first state has empty slots, Φ = 0; the last counts only when the episode was cut, not ended.
    left = weight * gamma**12 * rewards.potential(transitions[-1][0].after)
    alive = env.state.alive
    expected = torch.where(alive & (ending == "truncate"), left, 0.0)
    assert left.max() > 1
    assert (paid - expected).abs().max() < 1e-6


@pytest.mark.parametrize("ending", ["terminate", "truncate"])
def test_an_episode_ends_once_at_its_last_step(make_env, play, ending):
    env = make_env(envs=4, steps=5, episode_end=ending)
    ends = [(step[2][2].all().item(), step[2][3].all().item()) for step in play(env)]
    assert ends[:-1] == [(False, False)] * 4
    assert ends[-1] == (ending == "terminate", ending == "truncate")
    paid = [step[2][4].components["terminal"].abs().sum().item() for step in play(env)]
    assert paid[:-1] == [0.0] * 4 and paid[-1] > 0
    with pytest.raises(SimicError, match="the episode ended at step 5; call reset first"):
        env.step(Action.wait(4))


def test_a_forbidden_action_is_refused_by_name(make_env):
    env = make_env(envs=2)
    with pytest.raises(SimicError, match="no episode is running"):
        env.step(Action.wait(2))
    env.reset()
    action = Action.wait(2)._replace(op=torch.tensor([0, int(Op.FOSSILIZE)]))
    with pytest.raises(SimicError, match=r"'op': 4.* of host 1 at step 0: forbidden"):
        env.step(action)


def test_reset_measures_fresh_hosts_before_anything_is_trained(make_env, digits):
    env = make_env(envs=3)
    observation, info = env.reset(options={"iteration": 4})
    logits = env.population.logits(env.slots, digits[1].x, torch.zeros(3, env.host.slots, dtype=torch.bool))
    accuracy = 100 * (logits.argmax(2) == digits[1].y).float().mean(1)
    assert torch.allclose(info.live_accuracy, accuracy) and torch.allclose(info.committed_accuracy, accuracy)
    assert info.train_loss.isnan().all() and not info.components
    first = observation.features
    env.step(Action.wait(3))
    again, _ = env.reset(options={"iteration": 4})
    other, _ = env.reset()
    assert torch.equal(again.features, first) and env.iteration == 5
    assert not torch.equal(other.features, first)


def play_until_fossilized(env, play):
    """A random walk that ends with some seeds FOSSILIZED and others live."""
    steps = play(env, never=(Op.PRUNE, Op.WAIT))
    stage = env.slots.stage
    blended = (stage == Stage.BLENDING) | (stage == Stage.HOLDING)
    assert (stage == Stage.FOSSILIZED).any() and blended.any(), Counter(stage.flatten().tolist())
    return steps


@pytest.mark.parametrize("family", FAMILIES)
def test_committed_accuracy_is_that_of_host_and_fossilized_seeds_alone(make_env, play, digits, family):
    env = make_env(envs=8, family=family, steps=24)
    info = play_until_fossilized(env, play)[-1][2][4]
    off = in_stages(env.slots.stage, LIVE_STAGES) & (env.slots.stage != Stage.FOSSILIZED)
    logits = env.population.logits(env.slots, digits[1].x, off)
    manual = 100 * (logits.argmax(2) == digits[1].y).float().mean(1)
    assert torch.allclose(info.committed_accuracy, manual, atol=1e-4)
    accuracy, loss = env.committed(digits[1])
    assert torch.allclose(accuracy, manual, atol=1e-4)
    expected = torch.stack([torch.nn.functional.cross_entropy(row, digits[1].y) for row in logits])
    assert torch.allclose(loss, expected, atol=1e-5)
    assert (manual - info.live_accuracy).abs().max() > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_contributions_equal_separate_passes(make_env, play, digits, family):
    env = make_env(envs=8, family=family, steps=24)
    info = play_until_fossilized(env, play)[-1][2][4]
    off = configurations(env.slots)
    alone = [env.population.evaluate(env.slots, digits[1], one[None]).correct[0].double() for one in off]
    acting = in_stages(env.slots.stage, LIVE_STAGES) & (env.slots.alpha > 0)
    assert torch.equal(info.contribution.isnan(), ~acting) and acting.any()
    for slot in range(env.host.slots):
        difference = 100 * (alone[MAIN] - alone[WITHOUT + slot]).mean(1)
        rows = acting[:, slot]
        assert torch.allclose(info.contribution[rows, slot].double(), difference[rows], atol=1e-4)
    assert torch.allclose(info.committed_accuracy.double(), 100 * alone[COMMITTED].mean(1), atol=1e-4)


def test_what_a_host_does_depends_on_its_id_not_on_its_company(make_env, play):
    together = play(make_env(envs=6))
    apart = play(make_env(envs=2, env_ids=torch.tensor([1, 4])))
    for (_, actions, result), (_, lone_actions, lone_result) in zip(together, apart, strict=True):
        assert torch.equal(actions[[1, 4]], lone_actions)
        assert torch.equal(result[0].features[[1, 4]], lone_result[0].features)
        assert torch.equal(result[1][[1, 4]], lone_result[1])


class NoGlobalRandomness(TorchDispatchMode):
    """Raises on any operation that draws from torch's global generator."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise AssertionError(f"{func} draws from the global generator")
        return func(*args, **(kwargs or {}))


def test_no_step_draws_from_the_global_generator(make_env, play):
    env = make_env(envs=4, steps=8)
    with NoGlobalRandomness():
        play(env)
        with pytest.raises(AssertionError, match="draws from the global generator"):
            torch.rand(1)


def act(envs: int, op: Op, **heads: int) -> Action:
    """The same action in every host: fastest ramp to alpha 1 in slot 0 unless said otherwise."""
    named = {"op": int(op), "tempo": 0, "alpha_target": 2, **heads}
    return Action.wait(envs)._replace(**{name: torch.full((envs,), value) for name, value in named.items()})


@pytest.mark.parametrize("family", FAMILIES)
def test_germinating_and_pruning_is_worth_less_than_waiting_and_less_each_time(make_env, family):
    """A seed that never blends changes no bit of its host, so only what the cycle itself earns is compared."""
    cycle = [Op.GERMINATE, Op.ADVANCE, Op.WAIT, Op.PRUNE, Op.WAIT, Op.WAIT, Op.WAIT]
    lifecycle = Lifecycle(min_prune_age=1, embargo_steps=1, auto_advance=False)
    values, scores = [], []
    for cycles in range(3):
        env = make_env(envs=3, family=family, steps=15, lifecycle=lifecycle)
        env.reset(options={"iteration": 0})
        ops = (cycle * cycles + [Op.WAIT] * 15)[:15]
        value = torch.zeros(3, dtype=torch.float64)
        for t, op in enumerate(ops):
            _, reward, *_, info = env.step(act(3, op))
            assert (info.effective_op == op).all()
            value += env.setting.gamma**t * reward
        values.append(value)
        scores.append(info.committed_accuracy)
    assert torch.equal(scores[0], scores[1]) and torch.equal(scores[0], scores[2])
    assert (values[1] < values[0]).all() and (values[2] < values[1]).all()


def host_state(env) -> dict[str, torch.Tensor]:
    """Parameters, moments and steps of the hosts themselves, ``[E, ...]``."""
    return {name: value for name, value in env.population.state_dict().items() if name.startswith("host/")}


def poisoned(row: int, at_epoch: int) -> type[Population]:
    """A population whose host ``row`` turns into NaN at the end of its n-th epoch."""

    class Poisoned(Population):
        epochs = 0

        def train_epoch(self, slots, data, order):
            stats = super().train_epoch(slots, data, order)
            self.epochs += 1
            if self.epochs == at_epoch:
                state = {name: value.clone() for name, value in self.state_dict().items()}
                for name, value in state.items():
                    if name.startswith("host/"):
                        value[row] = torch.nan
                self.load_state_dict(state)
            return stats

    return Poisoned


@pytest.mark.parametrize("at_epoch", [1, 5, 10])
def test_rollback_ends_one_row_and_touches_no_other(make_env, play, at_epoch):
    row, steps = 2, 10
    sick_env = make_env(envs=5, steps=steps, compose=poisoned(row, at_epoch))
    sick, well = play(sick_env), play(well_env := make_env(envs=5, steps=steps))
    others = torch.arange(5) != row
    for t, ((_, _, a), (_, _, b)) in enumerate(zip(sick, well, strict=True)):
        now = t + 1 == at_epoch
        assert a[4].panicked.tolist() == (~others & now).tolist()
        assert a[4].valid.tolist() == (others | (t + 1 <= at_epoch)).tolist()
        assert torch.equal(a[0].features[others], b[0].features[others])
        assert torch.equal(a[1][others], b[1][others])
        assert a[0].features.isfinite().all() and a[1].isfinite().all()
        if now:
            parts = a[4].components
            assert a[2][row] and not a[3][row] and a[4].cause[row] == Cause.NON_FINITE
            assert parts["death"][row] == -10.0 and parts["terminal"][row] == 0.0
        elif t + 1 > at_epoch:
            assert a[1][row] == 0.0 and not a[2][row] and not a[3][row]
            assert all(value[row] == 0 for value in a[4].components.values())
    mine, theirs = host_state(sick_env), host_state(well_env)
    assert all(torch.equal(mine[name][others], theirs[name][others]) for name in theirs)


def test_a_rolled_back_host_is_what_it_was_at_its_last_healthy_step(make_env, play):
    row, at_epoch = 1, 4
    env = make_env(envs=3, steps=8, compose=poisoned(row, at_epoch))
    env.reset(options={"iteration": 0})
    states, infos = [], []
    germinate = Action.wait(3)._replace(op=torch.full((3,), int(Op.GERMINATE)))
    for step in range(8):
        *_, info = env.step(germinate if step == 0 else Action.wait(3))
        states.append({name: value[row] for name, value in host_state(env).items()})
        infos.append(info)
    healthy = at_epoch - 2  # index of the step before the panic
    stage = infos[at_epoch - 1].stage[row]
    assert (stage == Stage.PRUNED).any() and not in_stages(stage, LIVE_STAGES).any()
    for later in range(at_epoch - 1, 8):
        # The germinated seed never acted, so the committed network is the host at its snapshot.
        assert torch.equal(infos[later].committed_accuracy[row], infos[healthy].committed_accuracy[row])
        assert torch.equal(infos[later].live_accuracy[row], infos[later].committed_accuracy[row])
        assert all(torch.equal(value, states[healthy][name]) for name, value in states[later].items())
    assert not torch.equal(infos[-1].committed_accuracy[0], infos[healthy].committed_accuracy[0])


def test_fossilized_seeds_survive_a_rollback(make_env, transitions):
    """Slot 0 is fossilized, then the host turns to NaN: the committed network is that of the last healthy step."""
    env = make_env(envs=2, steps=12, compose=poisoned(0, 9), lifecycle=Lifecycle(training_dwell=1, auto_advance=False))
    env.reset(options={"iteration": 0})
    wait = Action.wait(2)
    plan = [act(2, Op.GERMINATE, blueprint=5), act(2, Op.ADVANCE), wait, act(2, Op.ADVANCE), wait, wait]
    plan += [act(2, Op.ADVANCE), act(2, Op.FOSSILIZE), wait, wait]
    infos = [env.step(action)[4] for action in plan]
    assert infos[7].stage[:, 0].tolist() == [Stage.FOSSILIZED] * 2
    assert infos[8].panicked.tolist() == [True, False]
    assert infos[8].stage[0, 0] == Stage.FOSSILIZED
    for later in (8, 9):
        assert torch.equal(infos[later].committed_accuracy[0], infos[7].committed_accuracy[0])
    # The row is a true terminal: F = -wΦ(s), with Φ(s) = 7.5 of the one FOSSILIZED seed.
    assert rewards.potential(transitions[8][0].before)[0] == 7.5
    assert abs(float(infos[8].components["shaping"][0]) + 0.3 * 7.5) < 1e-9


def test_auto_advance_walks_without_advance(make_env, play):
    lifecycle = Lifecycle(training_dwell=1, blending_dwell=1, min_prune_age=2, auto_advance=True)
    env = make_env(envs=10, steps=12, lifecycle=lifecycle)
    seen = set()
    for _, actions, (observation, *_, info) in play(env):
        assert (actions[:, 0] != Op.ADVANCE).all() and not observation.masks["op"][:, Op.ADVANCE].any()
        seen |= set(info.stage.flatten().tolist())
    assert {int(Stage.TRAINING), int(Stage.BLENDING), int(Stage.HOLDING)} <= seen


def test_the_sparse_mode_pays_at_the_end_only(make_env, play):

    env = make_env(envs=4, steps=5, reward=Reward(mode="sparse"))
    paid = [step[2][1] for step in play(env)]
    assert all(reward.eq(0).all() for reward in paid[:-1]) and paid[-1].gt(0).all()


def test_classes_of_training_and_validation_must_agree(make_env, digits):

    with pytest.raises(SimicError, match="validation data has 11 classes: allowed is the training data's 10"):
        growth_env.GrowthEnv(make_env().train, 1, digits[0], Dataset(digits[1].x, digits[1].y, 11))
