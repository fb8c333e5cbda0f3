"""An exported network has the accuracy that is claimed for it, and no other."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from simic import params as params_module
from simic.audit.certify_grown import certify_grown
from simic.data.batches import load_held_out
from simic.data.prepare import prepare
from simic.envs.growth_env import GrowthEnv
from simic.evaluation.result import PerSeed
from simic.growth.export import grown_network, write_network
from simic.growth.life.vocabulary import Slots

from .settings import PATCHES

ROOT = Path(__file__).parents[2]
TASKS = (1, 0)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, PerSeed]:
    """Two hosts with a kept seed each, as drawn; the better one written."""
    few = "prepare.suite.instances={train: 1, val: 1, held_out: 2, held_out_kinds: 1}"
    params = params_module.load(ROOT / "params.yaml", [*PATCHES, few, "prepare.suite.kinds=[same, digits]"])
    folder = tmp_path_factory.mktemp("grown")
    prepare(params.prepare, params.rng_seed, folder / "prepared", folder)
    held = load_held_out(folder / "prepared")
    env = GrowthEnv(params.train, params.rng_seed, held.train, held.val, torch.arange(2))
    env.reset(options={"tasks": torch.tensor(TASKS)})
    env._state = replace(env.state, slots=_kept(env.slots))
    env.population.germinate(env.slots, torch.ones_like(env.slots.stage, dtype=torch.bool))
    validation, test = env.committed(held.val)[0], env.committed(held.test)[0]
    best = int(validation.argmax())
    write_network(grown_network(env.population, env.slots, best, committed=True), folder / "grown", [], "")
    params_of = env.host.params + env.population.seed_params(env.slots).sum(dim=1)
    nothing = (0, 0)
    seeds = PerSeed(
        test_accuracy_pct=tuple(round(value, 4) for value in test.double().tolist()),
        val_accuracy_pct=tuple(round(value, 4) for value in validation.double().tolist()),
        params=tuple(params_of.tolist()),
        flops_per_sample=nothing, training_flops=nothing, validation_flops=nothing, germinated=nothing,
        fossilized=nothing, pruned=nothing, rollbacks=nothing,
    )  # fmt: skip
    return folder / "grown", folder / "prepared", seeds


def _kept(slots: Slots) -> Slots:
    ones = torch.ones_like(slots.stage)
    return replace(slots, stage=5 * ones, blueprint=3 * ones, alpha=ones.float(), germinations=ones)


def failed(exported: tuple[Path, Path, PerSeed], **changes: object) -> list[str]:
    grown, prepared, seeds = exported
    found = certify_grown(grown, prepared, seeds.model_copy(update=changes), TASKS)
    return [comparison.what for comparison in found if not comparison.ok]


def test_an_exported_network_has_its_accuracy(exported: tuple[Path, Path, PerSeed]) -> None:
    assert failed(exported) == []


def test_an_edited_score_is_noticed(exported: tuple[Path, Path, PerSeed]) -> None:
    better = tuple(value + 0.2 for value in exported[2].test_accuracy_pct)  # one sample of 512
    assert failed(exported, test_accuracy_pct=better) == [
        "accuracy of the exported weights",
        "accuracy of the exported program",
    ]
    assert failed(exported, params=(1, 1)) == ["parameters that evaluation counts"]


def test_other_weights_are_noticed(exported: tuple[Path, Path, PerSeed], tmp_path: Path) -> None:
    grown, prepared, seeds = exported
    shutil.copytree(grown, tmp_path / "grown")
    file = tmp_path / "grown" / "weights.safetensors"
    save_file({name: -value for name, value in load_file(file).items()}, file)
    found = certify_grown(tmp_path / "grown", prepared, seeds, TASKS)
    assert "answers of the exported weights and program" in [each.what for each in found if not each.ok]
