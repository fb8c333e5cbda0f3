"""Replayable episodes follow from the published weights and held-out data; what is changed in them is noticed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from simic import params as params_module
from simic.audit.reference.world.refusal import NoReference
from simic.audit.replay_evaluation import FIRST, MEAN, Replayable, replay_evaluation, telling
from simic.evaluation import result
from simic.evaluation.result import PerSeed
from simic.pipeline import stages
from simic.pipeline.paths import Workspace
from simic.training import checkpoint

from .settings import PATCHES

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "prepare.suite.instances={train: 4, val: 1, held_out: 2, held_out_kinds: 1}",
    "prepare.suite.kinds=[pairs_near, same, digits]",
    "headroom={policies: [static], schedules: 3, search_tasks: 2, floors: false}",
    "train.host={family: mlp, preset: baseline, widths: [16, 16, 16]}",
    "train.actions={}",
    "train.envs=6",
    "train.ppo.minibatches=1",
    "train.iterations=2",
    "train.validate_every=2",
    "train.episode_steps=8",
    "train.lifecycle={training_dwell: 1, blending_dwell: 1, min_prune_age: 2, embargo_steps: 0}",
    "evaluate={policies: [learned, learned_sampled], eval_seeds: 3, static_final: false}",
    "runtime={progress: none, processes: 1, threads: 1}",
)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Replayable:
    params = params_module.load(ROOT / "params.yaml", [*PATCHES, *SETTINGS])
    workspace = Workspace(tmp_path_factory.mktemp("workspace"))
    threads = torch.get_num_threads()
    for stage in (stages.prepare, stages.headroom, stages.train, stages.evaluate):
        stage(params, workspace)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    found = result.read(workspace.evaluation)
    assert found.checkpoint is not None
    return Replayable(params, workspace.prepared, found, checkpoint.read(workspace.checkpoints / found.checkpoint))


def differing(known: Replayable) -> list[str]:
    return [comparison.what for comparison in replay_evaluation(known) if not comparison.ok]


def claiming(known: Replayable, name: str, **changes: object) -> Replayable:
    """With other values per seed of one policy."""
    policies = dict(known.evaluation.policies)
    per_seed = policies[name].per_seed.model_copy(update=changes)
    policies[name] = policies[name].model_copy(update={"per_seed": per_seed})
    return replace(known, evaluation=known.evaluation.model_copy(update={"policies": policies}))


def test_evaluated_episodes_follow_from_weights_and_data(evaluated: Replayable) -> None:
    assert differing(evaluated) == []
    assert set(evaluated.evaluation.actions) == {"learned", "learned_sampled"}


def test_other_weights_decide_otherwise(evaluated: Replayable) -> None:
    tensors = {name: -x if "heads.0.out" in name else x for name, x in evaluated.checkpoint.tensors.items()}
    known = replace(evaluated, checkpoint=replace(evaluated.checkpoint, tensors=tensors))
    assert {FIRST, MEAN} <= set(differing(known))


def test_greedy_is_not_sampled(evaluated: Replayable) -> None:
    greedy, sampled = (evaluated.evaluation.actions[name] for name in ("learned", "learned_sampled"))
    assert greedy != sampled
    for swapped in ({"learned": sampled}, {"learned_sampled": greedy}):
        actions = {**evaluated.evaluation.actions, **swapped}
        known = replace(evaluated, evaluation=evaluated.evaluation.model_copy(update={"actions": actions}))
        assert FIRST in differing(known)


@pytest.mark.parametrize("what", ["params", "germinated", "fossilized", "pruned", "training_flops"])
def test_another_count_is_noticed(evaluated: Replayable, what: str) -> None:
    values = getattr(evaluated.evaluation.policies["learned"].per_seed, what)
    changed = {what: tuple(value + 1 for value in values)}  # of every host, so that the same one is played
    assert f"evaluated {what}" in differing(claiming(evaluated, "learned", **changed))


@pytest.mark.parametrize("split", ["test", "val"])
def test_another_accuracy_is_noticed(evaluated: Replayable, split: str) -> None:
    name = f"{split}_accuracy_pct"
    values = getattr(evaluated.evaluation.policies["learned"].per_seed, name)
    raised = {name: tuple(value + 21.0 for value in values)}
    assert differing(claiming(evaluated, "learned", **raised)) == [f"evaluated {split} accuracy"]


def test_without_a_trained_policy_there_is_nothing_to_play(evaluated: Replayable) -> None:
    nothing = evaluated.evaluation.model_copy(update={"actions": {}})
    with pytest.raises(NoReference, match="no trained policy"):
        replay_evaluation(replace(evaluated, evaluation=nothing))


def test_the_host_that_is_played_has_seeds_that_do_not_count_if_any_has() -> None:
    def seeds(**counts: tuple[int, ...]) -> PerSeed:
        nothing = (0, 0, 0)
        return PerSeed.model_construct(**{**dict.fromkeys(PerSeed.model_fields, nothing), **counts})

    assert telling(seeds(germinated=(2, 2, 1), pruned=(1, 0, 1), fossilized=(1, 1, 0))) == 1
    assert telling(seeds(germinated=(1, 1, 2), fossilized=(1, 1, 2))) == 2
    assert telling(seeds(germinated=(1, 1, 2), fossilized=(1, 1, 2), rollbacks=(1, 0, 1))) == 1
