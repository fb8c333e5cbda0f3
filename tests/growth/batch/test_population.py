"""The population: what it computes, what it keeps apart, what it brings back."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from simic.growth.batch.population import Population
from simic.growth.life.vocabulary import Blend, Slots, Stage
from simic.growth.networks.blueprints import blueprints_of

from ..worlds import (
    DATA,
    FAMILIES,
    PlainHost,
    logits_of,
    make_order,
    make_population,
    mixed_slots,
    one_seed,
    parameters,
    stored,
)

BOTH = pytest.mark.parametrize("family", FAMILIES)
EVERY = pytest.mark.parametrize("family", [*FAMILIES, "tables"])


def nothing_off(population: Population) -> Tensor:
    return torch.zeros(1, len(population), population.host.slots, dtype=torch.bool)


def test_no_position_of_a_grown_transformer_sees_a_later_one() -> None:
    """Every blueprint and operator, the gate too: a pool over positions would leak the answer."""
    population = make_population("transformer", 24)
    slots = mixed_slots(population)
    population.train_epoch(slots, DATA["transformer"], make_order(24, 2, 16))
    x = DATA["transformer"].x[:16]
    changed = x.clone()
    changed[:, 4:] = (changed[:, 4:] + 1) % 11
    before = logits_of(population, slots, x)
    after = logits_of(population, slots, changed)
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert not torch.equal(before[:, :, 4:], after[:, :, 4:])


# --- the same numbers as something slower ---


@EVERY
@pytest.mark.parametrize("backend", ["vmap", "loop"])
def test_a_population_is_many_plain_networks_under_torch_optim(family: str, backend: str) -> None:
    """Answers, weights and statistics of an epoch, which are means over its minibatches."""
    envs = 24 if family == "tables" else 8
    data = DATA[family]
    population = make_population(family, envs, backend)
    slots = mixed_slots(population)
    hosts = [PlainHost(population, slots, row) for row in range(envs)]
    order = make_order(envs, 4, 16)
    answers = population.evaluate(slots, data, nothing_off(population))
    for row, host in enumerate(hosts):
        loss = nn.functional.cross_entropy(host(data.x).flatten(0, -2), data.y.flatten())
        torch.testing.assert_close(answers.loss[0, row], loss.detach(), rtol=1e-4, atol=1e-4)
    stats = population.train_epoch(slots, data, order)
    for row, host in enumerate(hosts):
        means = host.learn(order[row])
        norms = {f"seed {k}": norm for k, norm in enumerate(stats.seed_grad_norm[row].tolist())}
        norms |= {"loss": stats.loss[row].item(), "host": stats.host_grad_norm[row].item()}
        expected_norms = {
            name: value for name, value in means.items() if not name.startswith("gate")
        }
        assert expected_norms == pytest.approx(
            {name: norms[name] for name in expected_norms}, rel=1e-3, abs=1e-4
        )
        trained = population.named_parameters(slots, row)
        for name, expected in host.named_parameters():
            torch.testing.assert_close(
                trained[name], expected.detach(), rtol=0, atol=1e-4, msg=f"host {row} {name}"
            )


# --- germination and isolation ---


@pytest.mark.parametrize("operator", list(Blend))
@EVERY
def test_germination_changes_no_output(family: str, operator: Blend) -> None:
    """Host e gets blueprint e; one for tables changes nothing at full strength either: its matrix starts at zero."""
    kinds = torch.arange(len(blueprints_of(family)))
    population = make_population(family, len(kinds))
    last = population.host.slots - 1
    alpha = float(family == "tables")
    bare = logits_of(population, Slots.empty(len(kinds), last + 1), DATA[family].x[:8])
    for stage, slot in (
        (Stage.GERMINATED, 0),
        (Stage.TRAINING, 0),
        (Stage.BLENDING, last),
        (Stage.TRAINING, last),
    ):
        slots = one_seed(population, stage, kinds, operator, alpha, slot)
        assert torch.equal(logits_of(population, slots, DATA[family].x[:8]), bare)


@BOTH
def test_a_training_seed_leaves_its_host_bit_equal(family: str) -> None:
    """Output, gradients and hence parameters, also when the seed is broken: each blueprint whole, infinite and NaN."""
    kinds = torch.arange(len(blueprints_of(family))).repeat_interleave(3)
    values = torch.tensor([0.5, torch.inf, torch.nan]).repeat(len(kinds) // 3)
    order = make_order(len(kinds), 3, 16)
    bare = make_population(family, len(kinds))
    population = make_population(family, len(kinds))
    bare_stats = bare.train_epoch(Slots.empty(len(kinds), 3), DATA[family], order)
    slots = one_seed(population, Stage.TRAINING, kinds, slot=1)
    for kind in kinds.unique().tolist():
        population._stores[f"seed.1.{kind}"].param.mul_(values[:, None])
    stats = population.train_epoch(slots, DATA[family], order)
    for name in ("loss", "accuracy", "host_grad_norm", "finite"):
        assert torch.equal(getattr(stats, name), getattr(bare_stats, name)), name
    assert torch.equal(parameters(population)["host/param"], parameters(bare)["host/param"])
    broken = ~stats.seed_grad_norm[:, 1].isfinite()
    assert torch.equal(broken, values != 0.5)
    assert not stats.gradient_healthy[broken, 1].any()


@BOTH
def test_a_broken_seed_that_is_off_or_not_yet_active_reaches_nobody(family: str) -> None:
    population = make_population(family, 2)
    bare = logits_of(population, Slots.empty(2, 3), DATA[family].x)
    slots = one_seed(population, Stage.HOLDING, 1, alpha=1.0)
    population._stores["seed.0.1"].param.fill_(torch.nan)
    off = torch.zeros(2, 3, dtype=torch.bool)
    off[:, 0] = True
    assert torch.equal(logits_of(population, slots, DATA[family].x, off), bare)
    assert logits_of(population, slots, DATA[family].x).isnan().all()
    dormant = replace(slots, stage=torch.full_like(slots.stage, int(Stage.GERMINATED)))
    assert torch.equal(logits_of(population, dormant, DATA[family].x), bare)


# --- evaluation ---


@BOTH
@pytest.mark.parametrize("backend", ["vmap", "loop"])
def test_fused_evaluation_equals_separate_passes(family: str, backend: str) -> None:
    population = make_population(family, 8, backend)
    data = DATA[family]
    slots = mixed_slots(population)
    population.train_epoch(slots, data, make_order(8, 2, 16))
    single_slots = torch.eye(3, dtype=torch.bool)[:, None].expand(3, 8, 3)
    off = torch.cat(
        (nothing_off(population), ~nothing_off(population), single_slots, ~single_slots)
    )
    fused = population.evaluate(slots, data, off)
    assert fused.correct.shape == (8, 8, 96)
    for i in range(8):
        single = population.evaluate(slots, data, off[i : i + 1])
        assert torch.equal(single.correct[0], fused.correct[i])
        assert torch.equal(single.loss[0], fused.loss[i])
        logits = logits_of(population, slots, data.x, off[i])
        right = logits.argmax(-1) == data.y
        assert torch.equal(right if right.dim() == 2 else right.float().mean(2), fused.correct[i])
        losses = [
            nn.functional.cross_entropy(row.flatten(0, -2), data.y.flatten()) for row in logits
        ]
        torch.testing.assert_close(fused.loss[i], torch.stack(losses), rtol=1e-5, atol=1e-5)


# --- chance ---


@EVERY
def test_a_new_seed_starts_without_momentum_and_old_ones_keep_theirs(family: str) -> None:
    population = make_population(family, 4)
    slots = one_seed(population, Stage.TRAINING, 1)
    population.train_epoch(slots, DATA[family], make_order(4, 2, 16))
    rows = torch.zeros_like(slots.stage, dtype=torch.bool)
    rows[2, 0] = True
    before = stored(population._stores)
    population.germinate(slots, rows, DATA[family])
    after = stored(population._stores)
    assert (after["seed.0.1/momentum"][2] == 0).all()
    assert after["seed.0.1/step"].tolist() == [2, 2, 0, 2]
    old_rows = torch.tensor([0, 1, 3])
    assert all(
        torch.equal(before[name][old_rows], after[name][old_rows])
        for name in before
        if "seed" in name
    )
    assert before["host/momentum"][2].any()
    assert all(
        torch.equal(before[name], after[name]) for name in before if name.startswith("host/")
    )


# --- snapshots: what hosts are put back to, each with the seeds that it keeps ---


@BOTH
def test_a_refreshed_snapshot_holds_each_host_and_its_fossils_at_their_own_time(
    family: str,
) -> None:
    """Of other seeds and of other hosts it keeps what it had: whoever restores prunes them."""
    population = make_population(family)
    slots = mixed_slots(population)
    population.take_snapshot()
    first = stored(population._snapshot)
    population.train_epoch(slots, DATA[family], make_order(8, 2, 16))
    healthy = torch.arange(8) % 2 == 0
    population.refresh_snapshot(healthy, slots)
    now = stored(population._stores)
    merged = stored(population._snapshot)
    assert not torch.equal(now["host/param"], first["host/param"])
    fossils = 0
    for name, tensor in merged.items():
        kind, slot, *blueprint = name.split("/")[0].split(".") if "." in name else ("host", "0")
        refreshed = healthy
        if kind != "host":
            refreshed = healthy & (slots.stage[:, int(slot)] == Stage.FOSSILIZED)
            if blueprint:
                refreshed = refreshed & (slots.blueprint[:, int(slot)] == int(blueprint[0]))
            fossils += int(refreshed.sum())
        assert torch.equal(
            tensor,
            torch.where(refreshed.view(-1, *[1] * (tensor.dim() - 1)), now[name], first[name]),
        ), name
    assert fossils


def test_a_snapshot_learns_of_seeds_that_came_after_it() -> None:
    population = make_population("mlp", 3)
    population.take_snapshot()
    slots = one_seed(population, Stage.FOSSILIZED, 1, alpha=1.0)
    population.refresh_snapshot(torch.tensor([True, False, True]), slots)
    seeds = parameters(population)["seed.0.1/param"].clone()
    population._stores["seed.0.1"].param.fill_(7.0)
    population.restore(torch.tensor([True, False, False]))
    restored = parameters(population)["seed.0.1/param"]
    assert torch.equal(restored[0], seeds[0]) and (restored[1:] == 7.0).all()
