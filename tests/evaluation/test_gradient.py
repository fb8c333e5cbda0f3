"""The gradient rule measures what a network by hand gives, and grows there."""

from dataclasses import replace

import pytest
import torch
from tiny import TASKS, tiny_env
from torch.nn import functional as F

from simic.envs.play import Episode, play
from simic.errors import SimicError
from simic.evaluation.gradient import Gradient, relative_gradients
from simic.growth.export import grown_network
from simic.growth.life.vocabulary import Op, Stage


def test_relative_gradients_are_those_of_finite_differences(bank):
    """A step of h along g changes the loss by h |g|², whoever computes it; classes that a task lacks are no answer."""
    env = tiny_env(bank)
    data = env.training_data
    env.reset(options={"iteration": 0, "tasks": torch.arange(TASKS)})
    assert data.lacking is not None and data.lacking.any()
    found, size = relative_gradients(env, range(TASKS)), env.train.batch_size
    for row in range(TASKS):
        network = grown_network(env.population, env.slots, row).double()
        x, y = data.x[row * len(data) :][:size].double(), data.y[row * len(data) :][:size]

        def loss(network=network, x=x, y=y, classes=data.task_classes[row]):
            return F.cross_entropy(network(x)[:, :classes], y)

        for k, segment in enumerate(network.segments):
            weights = list(segment.parameters())
            gradients = torch.autograd.grad(loss(), weights)
            square = sum(float(g.square().sum()) for g in gradients)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight += 1e-5 / square * gradient
                above = float(loss())
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight -= 2e-5 / square * gradient
                slope = (above - float(loss())) / 2e-5
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight += 1e-5 / square * gradient
            assert slope == pytest.approx(1.0, rel=1e-2)
            size_of = sum(float(w.detach().square().sum()) for w in weights) ** 0.5
            assert float(found[row, k]) == pytest.approx(square**0.5 / size_of, rel=1e-4)


@pytest.mark.parametrize("at", [0, 4])
def test_one_seed_grows_behind_the_largest_and_is_kept(bank, at):
    env = tiny_env(bank)
    actor, germinated, norms = Gradient(env, at), {}, []

    def note(situation, action, reward, info):
        if situation.step == at - 1:  # after its training: what step ``at`` sees
            affordable = situation.observation.masks["blueprint"][:, :, actor.blueprint]
            norms.append(torch.where(affordable, relative_gradients(env, range(TASKS)), -1.0))
        for host in (action.op == Op.GERMINATE).nonzero().flatten().tolist():
            germinated[host] = (situation.step, int(action.slot[host]), int(action.blueprint[host]))

    play(env, actor, 0, note, torch.arange(TASKS))
    assert [germinated[host][0] for host in range(TASKS)] == [at] * TASKS
    assert {kind for _, _, kind in germinated.values()} == {[b.name for b in env.blueprints].index("conv_light")}
    if norms:
        assert [germinated[host][1] for host in range(TASKS)] == norms[0].argmax(dim=1).tolist()
    assert ((env.slots.stage == Stage.FOSSILIZED).sum(dim=1) == 1).all()


def test_what_cannot_be_had_is_passed_over(bank):
    """Of a budget for one host's worth of parameters the seed fits in the first slots alone."""
    env = tiny_env(bank, lifecycle=tiny_env(bank).train.lifecycle.model_copy(update={"param_budget": 1.0}))
    actor, chosen = Gradient(env, 0), []

    def note(situation, action, reward, info):
        if situation.step == 0:
            kind = actor.blueprint
            chosen.append((situation.observation.masks["blueprint"][:, :, kind], action))

    play(env, actor, 0, note, torch.arange(TASKS))
    possible, action = chosen[0]
    assert possible.any(dim=1).all() and not possible.all()
    assert (action.op == Op.GERMINATE).all() and possible[torch.arange(TASKS), action.slot].all()


def test_an_actor_forgets_the_episode_before(bank):
    env = tiny_env(bank, hosts=2)
    actor, plans = Gradient(env, 2), []
    for _ in range(2):
        ops = []
        play(env, actor, 3, lambda s, action, r, i, ops=ops: ops.append(action.slot.tolist()), torch.arange(2))
        plans.append(ops)
    assert plans[0] == plans[1]
    actor.start(Episode(env.env_ids, 0, 1, env.steps))
    assert (actor.plan.blueprint == -1).all()


def test_one_measurement_costs_a_pass_forward_and_backward(bank):
    env = tiny_env(bank, hosts=1)
    assert Gradient(env).flops == 3 * 32 * env.host.flops_per_sample


def test_a_frozen_host_is_measured_at_once(bank):
    env = tiny_env(bank, hosts=1)
    assert Gradient(env).at == 5
    env.host = replace(env.host, frozen=True)
    assert Gradient(env).at == 0


def test_an_unknown_blueprint_is_refused(bank):
    with pytest.raises(SimicError, match=r"'mlp' of family 'cnn'; known are norm"):
        Gradient(tiny_env(bank, hosts=1), blueprint="mlp")
