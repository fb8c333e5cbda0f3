"""Faults put in by wrapping the population at composition: what the governor does in the real environment."""

from collections.abc import Callable

import pytest
import torch

from simic.envs.governor import Cause
from simic.growth.batch.population import Population
from simic.growth.life.lifecycle import LIVE_STAGES, in_stages
from simic.growth.life.vocabulary import Action, Op, Stage
from simic.params import Governor
from tests.standard import Host

from .conftest import AT_ONCE
from .transitions import act


def host_state(env) -> dict[str, torch.Tensor]:
    """Parameters, moments and steps of the hosts themselves, ``[E, ...]``."""
    return {
        f"host/{part}": tensor for part, tensor in env.population._stores["host"].tensors.items()
    }


def spoiled(spoil: Callable[[dict[str, torch.Tensor], int], object]) -> type[Population]:
    """A population whose state goes through ``spoil(state, n)`` at the end of its n-th epoch."""

    class Spoiled(Population):
        epochs = 0

        def train_epoch(self, *arguments):
            stats = super().train_epoch(*arguments)
            self.epochs += 1
            state = {
                f"{name}/{part}": tensor
                for name, store in self._stores.items()
                for part, tensor in store.tensors.items()
            }
            spoil(state, self.epochs)
            return stats

    return Spoiled


def poisoned(row: int, at_epoch: int) -> type[Population]:
    """A population whose host ``row`` turns into NaN at the end of its n-th epoch."""

    def spoil(state: dict[str, torch.Tensor], epoch: int) -> None:
        for name, value in state.items():
            if epoch == at_epoch and name.startswith("host/"):
                value[row] = torch.nan

    return spoiled(spoil)


@pytest.mark.parametrize(
    ("family", "backend", "at_epoch"),
    [("tables", "vmap", 1), ("cnn", "vmap", 4), ("mlp", "loop", 7)],
)
def test_rollback_ends_one_row_and_touches_no_other(make_env, play, family, backend, at_epoch):
    """Parameters, moments, observations and rewards of all other hosts are bit-equal to a run without the panic."""
    row = 2
    kind = {"envs": 5, "steps": 7, "family": family, "backend": backend}
    sick_env = make_env(**kind, compose=poisoned(row, at_epoch))
    well_env = make_env(**kind)
    sick = play(sick_env)
    well = play(well_env)
    healthy_rows = torch.arange(5) != row
    for t, ((_, _, a), (_, _, b)) in enumerate(zip(sick, well, strict=True)):
        now = t + 1 == at_epoch
        assert a[4].panicked.tolist() == (~healthy_rows & now).tolist()
        assert a[4].valid.tolist() == (healthy_rows | (t + 1 <= at_epoch)).tolist()
        assert torch.equal(a[0].features[healthy_rows], b[0].features[healthy_rows])
        assert torch.equal(a[1][healthy_rows], b[1][healthy_rows])
        assert a[0].features.isfinite().all() and a[1].isfinite().all()
        if now:
            parts = a[4].components
            assert a[2][row] and not a[3][row] and a[4].cause[row] == Cause.NON_FINITE
            assert parts["death"][row] == -10.0 and parts["terminal"][row] == 0.0
        elif t + 1 > at_epoch:
            assert a[1][row] == 0.0 and not a[2][row] and not a[3][row]
            assert all(value[row] == 0 for value in a[4].components.values())
    healthy = host_state(well_env)
    for name, value in host_state(sick_env).items():
        assert torch.equal(value[healthy_rows], healthy[name][healthy_rows])


@pytest.mark.parametrize(("factor", "anomalies"), [(torch.nan, 0), (30.0, 1)])
def test_a_rolled_back_host_is_what_it_was_at_its_last_healthy_step(make_env, factor, anomalies):
    """It breaks at once, or by two epochs above all thresholds, of which the first is no snapshot."""
    row = 1
    begins = 6
    watch = Governor(min_history=3, consecutive_panics=2)
    blown_up = spoiled(
        lambda state, epoch: state["host/param"][row].mul_(factor if epoch >= begins else 1.0)
    )
    # Hosts that learn: of one that stays at chance every epoch has the same accuracy.
    host = Host(preset="baseline")
    kind = {"envs": 3, "steps": 9, "host": host, "batches_per_epoch": "all", "governor": watch}
    env = make_env(**kind, compose=blown_up)
    env.reset(options={"iteration": 0})
    states = []
    infos = []
    for action in [act(3, Op.GERMINATE), *[Action.wait(3)] * 8]:
        infos.append(env.step(action)[4])
        states.append({name: value.clone() for name, value in host_state(env).items()})
    panic = begins - 1 + anomalies
    cause = Cause.DIVERGENCE if anomalies else Cause.NON_FINITE
    causes = [int(info.cause[row]) for info in infos]
    assert causes == [Cause.NONE] * panic + [cause] + [Cause.NONE] * (8 - panic)
    stage = infos[panic].stage[row]
    assert (stage == Stage.PRUNED).any() and not in_stages(stage, LIVE_STAGES).any()
    # The germinated seed never acted, so the committed network is the host at its snapshot.
    healthy = begins - 2
    for step in range(panic, 9):
        accuracy = infos[step].committed_accuracy[row]
        assert accuracy == infos[healthy].committed_accuracy[row] == infos[step].live_accuracy[row]
        for name, value in states[step].items():
            assert torch.equal(value[row], states[healthy][name][row]), name
    assert not torch.equal(states[-1]["host/param"][0], states[healthy]["host/param"][0])


def test_a_seed_that_makes_room_is_told_and_the_governor_forgets_its_network(
    make_env, play
) -> None:
    """As after a prune: what the network with the old seed had reached is no measure of the one without it."""
    env = make_env(40, family="tables", lifecycle=AT_ONCE, backend="vmap")
    step = env.step
    count = 0

    def stepping(actions: torch.Tensor):
        nonlocal count
        lived = in_stages(env.slots.stage, LIVE_STAGES)
        result = step(actions)
        info = result[4]
        germinated = (info.effective_op == Op.GERMINATE)[:, None] & (actions[:, 1:2] == 0)
        assert torch.equal(info.replaced, lived & germinated)
        losses = env.state.vitals.losses[info.replaced[:, 0]]
        assert ((~losses.isnan()).sum(dim=1) <= 1).all()
        count += int(info.replaced.sum())
        return result

    env.step = stepping
    play(env, prefer=(Op.GERMINATE,))
    assert count > 50
