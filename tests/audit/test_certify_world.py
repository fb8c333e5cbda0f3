"""The certificate of the world passes clean code, and every fault planted in the code that it checks fails it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from simic import params as params_module
from simic import rng
from simic.audit import certify_world as certificate
from simic.audit.certify_world import certify_world
from simic.audit.comparison import Comparison
from simic.audit.reference.world.refusal import NoReference
from simic.audit.world import laws
from simic.audit.world.ledger import Ledger
from simic.data.batches import Dataset
from simic.data.prepare import prepare
from simic.envs import growth_env
from simic.envs import masks as env_masks
from simic.envs.attribution import COMMITTED, WITHOUT
from simic.envs.masks import Budget
from simic.envs.rewards import registration
from simic.growth import export
from simic.growth.batch import forward, joints, optimizers, population
from simic.growth.batch.arena import Arena
from simic.growth.batch.groups import SlotState
from simic.growth.batch.population import Population
from simic.growth.life import lifecycle
from simic.growth.life.vocabulary import Op, Stage
from simic.params import Params
from simic.rng import Purpose
from simic.training import session
from tests.helpers import some

from .settings import PATCHES

ROOT = Path(__file__).parents[2]
# Patches on which all is tried, and few enough of them.
FEW = (
    "prepare.suite.instances={train: 6, val: 1, held_out: 1, held_out_kinds: 1}",
    "prepare.suite.kinds=[pairs_near, same, digits]",
)
SMALL_MLP = "train.host={family: mlp, preset: baseline, widths: [16, 16, 16]}"
# Much can happen in few steps, and all choices are open; values, not the shape, of a small host.
QUICK = (
    *FEW,
    SMALL_MLP,
    "train.actions={}",
    "train.lifecycle.max_seeds=2",
    "train.lifecycle.min_prune_age=4",
    "train.lifecycle.training_dwell=2",
    "train.lifecycle.blending_dwell=1",
    "train.price=2.0",
)
DIGITS = (
    "prepare.task=digits",
    "prepare.samples=600",
    SMALL_MLP,
    "train.actions={}",
)


def of(*overrides: str) -> Params:
    """The project's own params with some changed."""
    return params_module.load(ROOT / "params.yaml", [*PATCHES, *overrides])


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    params = of(*FEW)
    folder = tmp_path_factory.mktemp("patches")
    prepare(params.prepare, params.rng_seed, folder / "prepared", folder)
    return folder / "prepared"


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    params = of(*DIGITS)
    folder = tmp_path_factory.mktemp("digits")
    prepare(params.prepare, params.rng_seed, folder / "prepared", folder)
    return folder / "prepared"


def failed(found: tuple[Comparison, ...]) -> list[str]:
    return [comparison.what for comparison in found if not comparison.ok]


# --- clean code ------------------------------------------------------------------------------------------------------


def test_the_default_settings_are_certified(patches: Path) -> None:
    found = certify_world(of(*FEW), patches)
    assert failed(found) == []
    # Nothing of what is to be compared was left out.
    said = {comparison.what for comparison in found}
    for what in ("change of the seed in an epoch", "contribution", "reward: score_change", "observation", "score"):
        assert what in said
    assert "a host alone is what it is among others" in said and "accuracy of the exported program" in said


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["shaped", "score"])
def test_other_optimisers_and_many_seeds_are_certified(digits: Path, mode: str) -> None:
    sgd = "train.host_optimizer={name: sgd, learning_rate: 0.05, seed_weight_decay: 0.001}"
    many = "train.lifecycle={gates: strict, auto_advance: false, param_budget: 9.0, min_prune_age: 2}"
    found = certify_world(of(*DIGITS, sgd, many, f"train.reward.mode={mode}", "rng_seed=7"), digits)
    assert failed(found) == []
    assert ("reward: attribution" in {comparison.what for comparison in found}) == (mode == "shaped")


# As the suite's own settings, with all choices open: stages take no time, and seeds replace each other.
TABLES = (
    "prepare.suite={name: tables, instances: {train: 6, val: 1, held_out: 1, held_out_kinds: 1}}",
    "train.host={family: tables, preset: baseline}",
    "train.lifecycle={training_dwell: 0, blending_dwell: 0, min_prune_age: 0, embargo_steps: 0, reset_steps: 0, "
    "sequential_development: false, max_seeds: 1}",
    "train.actions={}",
    "train.host_optimizer={name: adamw, learning_rate: 0.005, weight_decay: 0.02, seed_weight_decay: 0.02}",
    "train.batch_size=48",
)


@pytest.mark.slow
@pytest.mark.parametrize("dwell", [0, 1])
def test_tables_are_certified(tmp_path: Path, dwell: int) -> None:
    params = of(*TABLES, f"train.lifecycle.training_dwell={dwell}")
    prepare(params.prepare, params.rng_seed, tmp_path / "prepared", tmp_path)
    found = certify_world(params, tmp_path / "prepared")
    assert failed(found) == []
    assert ("first weights of the seed" in {comparison.what for comparison in found}) or dwell == 0


LARGE = (
    "prepare.task=npz",
    "prepare.source=large.npz",
    "prepare.samples=null",
    "train.actions={}",
    "train.batch_size=64",
)
SGD = "train.host_optimizer={name: sgd, learning_rate: 0.05}"


@pytest.mark.slow
@pytest.mark.parametrize("settings", [("train.host.preset=baseline", SGD), ("train.host.preset=deep",)])
def test_large_images_are_certified(tmp_path: Path, settings: tuple[str, ...]) -> None:
    """Some unit always lies on a kink, and gradients are long sums and large."""
    drawn, y = np.random.default_rng(0), np.arange(1200) % 10
    x = drawn.random((len(y), 1, 28, 28), np.float32)
    x[np.arange(len(y)), 0, 2 * y + 4] += 0.5
    np.savez(tmp_path / "large.npz", x=x, y=y)
    params = of(*LARGE, *settings)
    prepare(params.prepare, params.rng_seed, tmp_path / "prepared", tmp_path)
    assert failed(certify_world(params, tmp_path / "prepared")) == []


def test_a_median_may_be_ten_times_what_rounding_alone_does() -> None:
    one, asked = torch.ones(1, dtype=torch.float64), []

    def verdict(deviation: float, rounding: float) -> bool:
        ledger = Ledger({"x": 1.0}, {"x": 1e-6})
        for _ in range(3):
            ledger.tensors("x", "here", one + deviation, one, rounded=lambda: asked.append(1) or one + rounding)
        return all(comparison.ok for comparison in ledger.comparisons())

    assert verdict(5e-7, 0.0) and not asked  # a second epoch is trained only where it is needed
    assert verdict(9e-5, 1e-5) and not verdict(2e-4, 1e-5)
    assert not verdict(2e-6, 0.0) and not verdict(2e-6, 1e-7)
    assert len(asked) == 12


def test_settings_without_a_reference_are_refused(digits: Path) -> None:
    with pytest.raises(NoReference, match="transformer"):
        certify_world(of(*DIGITS, "train.host.family=transformer"), digits)
    with pytest.raises(NoReference, match=r"train\.reward\.mode"):
        certify_world(of(*DIGITS, "train.reward.mode=escrow"), digits)


# --- planted faults --------------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, tuple[Plant, tuple[str, ...]]] = {}


def fault(*settings: str) -> Callable[[Plant], Plant]:
    """Register a fault, with settings under which it makes a difference."""

    def register(plant: Plant) -> Plant:
        FAULTS[plant.__name__] = plant, settings
        return plant

    return register


def around(mp: pytest.MonkeyPatch, owner: object, name: str, wrap: Callable) -> None:
    """Replace ``owner.name`` by ``wrap(original)``."""
    mp.setattr(owner, name, wrap(getattr(owner, name)))


@fault()
def hosts_share_weights(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        return lambda self, it, tasks=None, ids=None: real(self, it, tasks, torch.zeros_like(ids))

    around(mp, Population, "reset", wrap)


def _changed_blocks(mp: pytest.MonkeyPatch, change: Callable) -> None:
    def wrap(real):
        def blocks(self, plan, hosts):
            found, names = real(self, plan, hosts)
            return [change(block, name) for block, name in zip(found, names, strict=True)], names

        return blocks

    around(mp, Population, "_blocks", wrap)


@fault()
def a_blueprint_never_trains(mp: pytest.MonkeyPatch) -> None:
    def still(block, name):
        lora = name.startswith("seed.") and name.endswith(".1")
        return replace(block, frozen=np.ones_like(block.frozen)) if lora else block

    _changed_blocks(mp, still)


@fault()
def gates_never_train(mp: pytest.MonkeyPatch) -> None:
    def still(block, name):
        return replace(block, frozen=np.ones_like(block.frozen)) if name.startswith("gate.") else block

    _changed_blocks(mp, still)


@fault()
def weight_decay_on_seeds(mp: pytest.MonkeyPatch) -> None:
    _changed_blocks(mp, lambda block, name: replace(block, weight_decay=5e-4))


@fault()
def no_weight_decay(mp: pytest.MonkeyPatch) -> None:
    _changed_blocks(mp, lambda block, name: replace(block, weight_decay=0.0))


@fault()
def the_hosts_gradient_is_zero(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def gradients(loss, leaves):
            first, *rest = real(loss, leaves)
            return [torch.zeros_like(first), *rest]

        return gradients

    around(mp, population, "_gradients", wrap)


@fault()
def seeds_send_gradients_to_an_isolated_host(mp: pytest.MonkeyPatch) -> None:
    around(mp, population, "training_plan", lambda real: lambda state, alpha, isolated: real(state, alpha, frozenset()))


@fault()
def seeds_train_while_they_fade_out(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def plan(state: SlotState, alpha, isolated):
            return real(replace(state, frozen=np.zeros_like(state.frozen)), alpha, isolated)

        return plan

    around(mp, population, "training_plan", wrap)


def _changed_split(mp: pytest.MonkeyPatch, change: Callable) -> None:
    def wrap(real):
        def load_split(prepared, split, device="cpu"):
            data = real(prepared, split, device)
            return change(data) if split == "val" else data

        return load_split

    around(mp, session, "load_split", wrap)


@fault()
def labels_of_validation_are_shifted(mp: pytest.MonkeyPatch) -> None:
    _changed_split(mp, lambda data: replace(data, y=data.y.roll(1)))


@fault()
def validation_on_training_samples(mp: pytest.MonkeyPatch) -> None:
    real = session.load_split
    mp.setattr(session, "load_split", lambda prepared, split, device="cpu": real(prepared, "train", device))


@fault()
def the_same_batch_again_and_again(mp: pytest.MonkeyPatch) -> None:
    around(mp, growth_env, "epoch_order", lambda real: lambda *args: (o := real(*args))[:, :1].expand_as(o))


@fault()
def every_epoch_has_the_order_of_the_first(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        return lambda seed, iteration, ids, step, *rest: real(seed, iteration, ids, 1, *rest)

    around(mp, growth_env, "epoch_order", wrap)


@fault()
def every_iteration_has_the_order_of_the_first(mp: pytest.MonkeyPatch) -> None:
    around(mp, growth_env, "epoch_order", lambda real: lambda seed, iteration, *rest: real(seed, 0, *rest))


@fault()
def hosts_train_on_the_task_of_another(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def train_epoch(self, slots, data, order, *rest):
            return real(self, slots, data, order.roll(2, 0), *rest)

        return train_epoch

    around(mp, Population, "train_epoch", wrap)


@fault()
def all_hosts_have_one_task(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(growth_env.GrowthEnv, "_drawn_tasks", lambda self: torch.zeros_like(self.host_ids))


@fault()
def classes_that_a_task_lacks_are_answers(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(Dataset, "lacking", None)


@fault()
def the_action_goes_to_another_slot(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def advance(slots, action, rules, accuracy):
            return real(slots, action._replace(slot=(action.slot + 1) % slots.stage.shape[1]), rules, accuracy)

        return advance

    around(mp, growth_env, "advance", wrap)


@fault()
def gates_always_open(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        return lambda slots, rules: {stage: torch.ones_like(passed) for stage, passed in real(slots, rules).items()}

    around(mp, lifecycle, "gate_passes", wrap)


@fault()
def ramps_take_a_step_more(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        return lambda slots, where, target, steps, curve: real(slots, where, target, steps + 1, curve)

    around(mp, lifecycle, "retarget", wrap)


@fault()
def curves_are_all_linear(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        return lambda slots, where, target, steps, curve: real(slots, where, target, steps, torch.zeros_like(curve))

    around(mp, lifecycle, "retarget", wrap)


@fault()
def prune_leaves_the_seed(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(lifecycle, "_remove", lambda slots, where: slots)


@fault()
def fossilize_is_forgotten(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def advance(slots, action, rules, accuracy):
            kept = action.op == Op.FOSSILIZE
            after, events = real(slots, action._replace(op=torch.where(kept, 0, action.op)), rules, accuracy)
            return after, replace(events, effective_op=torch.where(kept, action.op, events.effective_op))

        return advance

    around(mp, growth_env, "advance", wrap)


@fault()
def seeds_of_a_slot_are_all_alike(mp: pytest.MonkeyPatch) -> None:
    """The count of germinations is no part of the stream."""

    def wrap(real):
        def key(seed, purpose, *counters, device=None):
            if purpose == Purpose.SEED_INIT:
                *who, germination, module = counters
                counters = (*who, torch.ones_like(germination), module)
            return real(seed, purpose, *counters, device=device)

        return key

    around(mp, rng, "key", wrap)


@fault("train.host={family: cnn, preset: impaired}")  # of its blueprints some would not
def multiply_does_not_begin_as_the_identity(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def init(self, *args, **kwargs):
            real(self, *args, **kwargs)
            self._closing = [[torch.zeros_like(flags) for flags in slot] for slot in self._closing]

        return init

    around(mp, Population, "__init__", wrap)


@fault()
def contribution_with_the_wrong_seed_off(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def switched_off(acting, fossilized):
            off, count = real(acting, fossilized), acting.shape[1]
            off[WITHOUT : WITHOUT + count] = np.roll(off[WITHOUT : WITHOUT + count], 1, 0)
            return off

        return switched_off

    around(mp, growth_env, "switched_off", wrap)


@fault()
def committed_accuracy_counts_all_seeds(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def switched_off(acting, fossilized):
            off = real(acting, fossilized)
            off[COMMITTED] = False
            return off

        return switched_off

    around(mp, growth_env, "switched_off", wrap)


def _changed_term(mp: pytest.MonkeyPatch, name: str, change: Callable) -> None:
    mp.setitem(registration.TERMS, name, change(registration.TERMS[name]))


@fault()
def the_reward_has_the_other_sign(mp: pytest.MonkeyPatch) -> None:
    _changed_term(mp, "score_change", lambda real: lambda t, setting: -real(t, setting))


@fault()
def a_term_of_the_reward_is_dropped(mp: pytest.MonkeyPatch) -> None:
    mp.setitem(registration.MODES, "score", ("shaping", "score_change", "death"))


@fault()
def shaping_without_discount(mp: pytest.MonkeyPatch) -> None:
    _changed_term(mp, "shaping", lambda real: lambda t, setting: real(t, replace(setting, gamma=1.0)))


@fault()
def shaping_is_kept_at_the_end(mp: pytest.MonkeyPatch) -> None:
    _changed_term(mp, "shaping", lambda real: lambda t, s: real(replace(t, terminal=torch.zeros_like(t.terminal)), s))


@fault()
def the_price_is_forgotten(mp: pytest.MonkeyPatch) -> None:
    _changed_term(mp, "score_change", lambda real: lambda t, setting: real(t, replace(setting, price=0.0)))


@fault()
def one_seed_too_many_is_allowed(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        return lambda slots, rules: real(slots, rules.model_copy(update={"max_seeds": rules.max_seeds + 1}))

    around(mp, env_masks, "legal_ops", wrap)


@fault()
def the_budget_forgets_what_is_there(mp: pytest.MonkeyPatch) -> None:
    def fits(self, slots):
        return ((self.reserve <= self.limit) & self.runs).expand(*slots.stage.shape, -1)

    mp.setattr(Budget, "fits", fits)


@fault()
def masks_forbid_nothing(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        return lambda *args: {head: torch.ones_like(mask) for head, mask in real(*args).items()}

    around(mp, growth_env, "action_masks", wrap)


@fault()
def parameters_are_counted_without_gates(mp: pytest.MonkeyPatch) -> None:
    around(mp, Population, "_weigh", lambda real: lambda self, slots, seeds, gates: real(self, slots, seeds, 0 * gates))


@fault()
def flops_are_those_of_another_blueprint(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def counts(self):
            params, flops, *gates = real(self)
            return [params, flops.roll(1, 1), *gates]

        return counts

    around(mp, Population, "_counts", wrap)


@fault()
def features_are_shifted_by_one(mp: pytest.MonkeyPatch) -> None:
    around(mp, growth_env, "observe", lambda real: lambda view: real(view).roll(1, 1))


@fault()
def features_of_another_host(mp: pytest.MonkeyPatch) -> None:
    around(mp, growth_env, "observe", lambda real: lambda view: real(view).roll(1, 0))


@fault()
def one_feature_is_constant(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        return lambda view: real(view).index_fill(1, torch.tensor([16]), 0.0)  # accuracy_gain

    around(mp, growth_env, "observe", wrap)


@fault()
def the_live_network_is_scored(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(growth_env, "COMMITTED", 0)


@fault()
def the_second_moment_is_shared(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def adamw(update):
            real(update)
            update.moments["variance"].copy_(update.moments["variance"].mean(0, keepdim=True).expand_as(update.param))

        return adamw

    around(mp, optimizers, "_adamw", wrap)


@fault()
def moments_are_forgotten_between_epochs(mp: pytest.MonkeyPatch) -> None:
    def scatter(self):
        for block, param, step in zip(self.blocks, self.params, self._step_of, strict=True):
            block.store.param[block.hosts], block.store.step[block.hosts] = param, step

    mp.setattr(Arena, "scatter", scatter)


@fault()
def seeds_learn_half_as_fast(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def init(self, *args):
            real(self, *args)
            first, *rest = self._rates
            self._rates = [first, *(rate / 2 for rate in rest)]

        return init

    around(mp, Arena, "__init__", wrap)


@fault("train.host_optimizer.max_grad_norm=0.1")
def gradients_are_not_clipped(mp: pytest.MonkeyPatch) -> None:
    mp.setattr(optimizers, "clip_scale", lambda norms, most: torch.ones_like(norms))


@fault()
def alpha_is_squared(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        return lambda operator, h, s, x, alpha, gate: real(operator, h, s, x, alpha * alpha, gate)

    around(mp, joints, "blend", wrap)


@fault()
def gradients_of_blending_have_the_wrong_alpha(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def blend_gradients(operator, grad, h, s, x, alpha, gate):
            return real(operator, grad, h, s, x, torch.ones_like(alpha), gate)

        return blend_gradients

    around(mp, joints, "blend_gradients", wrap)


@fault()
def seeds_are_measured_while_they_only_train(mp: pytest.MonkeyPatch) -> None:
    """Their contribution is told as 0, not as missing."""

    def wrap(real):
        def attribute(slots, correct, loss):
            found = real(slots, correct, loss)
            train = (slots.stage == Stage.TRAINING) & found.contribution.isnan()
            return replace(found, contribution=found.contribution.masked_fill(train, 0.0))

        return attribute

    around(mp, growth_env, "attribute", wrap)


@fault("train.reward.mode=shaped")
def credit_is_kept_at_the_end(mp: pytest.MonkeyPatch) -> None:
    _changed_term(
        mp, "attribution", lambda real: lambda t, s: real(replace(t, terminal=torch.zeros_like(t.terminal)), s)
    )


@fault("train.reward.mode=shaped")
def noise_is_paid_as_contribution(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def attribution(t, setting):
            weights = setting.weights.model_copy(update={"contribution_threshold_pct": 0.0})
            return real(t, replace(setting, weights=weights))

        return attribution

    _changed_term(mp, "attribution", wrap)


@fault()
def the_learning_rate_of_seeds_is_off_by_a_thousandth(mp: pytest.MonkeyPatch) -> None:
    def wrap(real):
        def init(self, *args):
            real(self, *args)
            first, *rest = self._rates
            self._rates = [first, *(1.001 * rate for rate in rest)]

        return init

    around(mp, Arena, "__init__", wrap)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer hosts, and none of the two laws that take as long as all else."""
    monkeypatch.setattr(certificate, "HOSTS", 4)
    monkeypatch.setattr(laws, "exported", lambda *args: None)
    monkeypatch.setattr(laws, "alone", lambda *args: None)


def test_the_short_tour_is_clean_and_sees_everything(patches: Path, short: None) -> None:
    found = certify_world(of(*QUICK), patches)
    assert failed(found) == []
    toured = next(comparison for comparison in found if comparison.what == "ops that were possible and never done")
    assert toured.where == "never made: none; never possible: op ADVANCE"  # seeds advance by themselves


SPREAD = some([*FAULTS], *[*FAULTS][::18])


@pytest.mark.parametrize("name", SPREAD)
def test_a_planted_fault_is_caught(name: str, patches: Path, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, settings = FAULTS[name]
    plant(monkeypatch)
    assert failed(certify_world(of(*QUICK, *settings), patches)) != []


def test_an_op_that_a_gate_refused_and_is_told_as_done_is_caught(
    patches: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrap(real):
        def advance(slots, action, rules, accuracy):
            after, events = real(slots, action, rules, accuracy)
            return after, replace(events, effective_op=action.op)

        return advance

    around(monkeypatch, growth_env, "advance", wrap)
    found = certify_world(of(*QUICK, "train.lifecycle.auto_advance=false"), patches)
    assert "effective_op" in failed(found)


def test_a_host_that_depends_on_its_company_is_caught(patches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "HOSTS", 4)
    around(monkeypatch, forward, "loop", lambda real: lambda t, w, plan, x: real(t, w, plan, x) * (1 + 1e-4 * len(x)))
    assert failed(certify_world(of(*QUICK), patches)) == ["a host alone is what it is among others"]


def test_an_exported_network_without_its_seeds_is_caught(patches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "HOSTS", 4)
    monkeypatch.setattr(export.GraftedSeed, "forward", lambda self, x, *_: x * 0.5)
    assert "answers of the exported weights and program" in failed(certify_world(of(*QUICK), patches))
