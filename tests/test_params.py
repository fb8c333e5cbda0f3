"""params.yaml and its frozen tree."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from simic import params
from simic.errors import SimicError
from simic.pipeline import stages

ROOT = Path(__file__).parents[1]


def test_shipped_file_is_every_default_with_the_settings_of_the_suite_tables_and_nothing_else(tmp_path: Path) -> None:
    """params.yaml, the classes and the suite are one truth: same keys, same values."""
    tree = yaml.safe_load((ROOT / "params.yaml").read_text())
    (tmp_path / "defaults.yaml").write_text("{}")
    expected = params.load(tmp_path / "defaults.yaml", list(stages.suite_overrides("tables")), whole=False)
    assert tree == yaml.safe_load(yaml.safe_dump(expected.model_dump(mode="json")))
    assert (params.Params().prepare.task, params.Params().train.actions) == ("digits", {})  # the classes are neutral


def test_tree_is_frozen() -> None:
    with pytest.raises(ValidationError):
        params.Params().train.envs = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.ppo.lr=0.1", ["train.ppo.lr", "unknown key", "learning_rate"]),
        ("train.envs=0", ["train.envs = 0", "an integer from 1 to"]),
        ("train.envs=2.5", ["train.envs = 2.5", "integer"]),
        ("train.envs=true", ["train.envs = True", "integer"]),
        ("train.ppo.learning_rate=fast", ["train.ppo.learning_rate = 'fast'", "number"]),
        ("train.ppo.learning_rate=.nan", ["train.ppo.learning_rate = nan", "from 1e-12 to 10"]),
        ("train.ppo.learning_rate=-1", ["train.ppo.learning_rate = -1", "from 1e-12 to 10", "the default is 0.001"]),
        ("train.host.family=vit", ["train.host.family = 'vit'", "must be one of", "cnn", "mlp", "transformer"]),
        ("extensions=scale", ["extensions = 'scale'", "a list"]),
        ("extensions=[../scale]", ["extensions.0 = '../scale'", "matches"]),
        ("extensions=[nowhere]", ["extensions/nowhere.py", "no such file"]),
        ("train.envs=33", ["train", "33", "multiple of ppo.minibatches (4)"]),
        ("train.reward.loss.rent=1", ["train.reward.loss.rent", "unknown key", "rent_weight"]),
        ("train.ppo.value_clip=0.2", ["train.ppo.value_clip", "unknown key", "clip_range"]),
        ("prepare.split.train=0.9", ["prepare.split", "sum to 1"]),
        ("prepare.task=npz", ["prepare", "source", "required"]),
        ("prepare.task=text", ["prepare", "source", "required"]),
        ("prepare.task=synthetic", ["prepare", "planted task", "required"]),
        ("prepare.source=mine.npz", ["prepare", "source", "null otherwise"]),
        ("prepare.task=imagenet", ["prepare.task = 'imagenet'", "digits", "cifar10", "synthetic"]),
        ("prepare.samples=0", ["prepare.samples = 0", "an integer from 1 to"]),
        ("prepare.context=0", ["prepare.context = 0", "an integer from 1 to"]),
        ("train=3", ["train = 3"]),
        ("rng_seed=-1", ["rng_seed = -1", "from 0 to 2147483647"]),
    ],
)
def test_wrong_value_names_key_value_and_range(override: str, words: list[str]) -> None:
    with pytest.raises(SimicError) as caught:
        params.load(ROOT / "params.yaml", [override])
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("override", ["train.envs", "=3", "train..envs=3", "rng_seed.x=3", "train.envs=[1"])
def test_malformed_override_is_refused(override: str) -> None:
    with pytest.raises(SimicError, match=r"^-S "):
        params.load(ROOT / "params.yaml", [override])


def test_numbers_are_read_as_dvc_does(tmp_path: Path) -> None:
    assert params.load(ROOT / "params.yaml", ["train.ppo.learning_rate=1e-4"]).train.ppo.learning_rate == 1e-4
    # Of files too: YAML 1.1 reads it as a string, DVC as a number.
    path = tmp_path / "params.yaml"
    path.write_text("train: {ppo: {learning_rate: 3e-4, adam_eps: 1.E-6}}\n")
    assert params.load(path, whole=False).train.ppo.learning_rate == 3e-4
    assert params.load(path, whole=False).train.ppo.adam_eps == 1e-6


def test_digest_changes_with_any_value() -> None:
    tree = params.Params()
    other = params.load(ROOT / "params.yaml", ["train.ppo.clip_range=0.1"])
    assert params.digest(tree.train) == params.digest(params.Params().train)
    assert params.digest(tree.train) != params.digest(other.train)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.episode_steps=[16, 5]", r"episode_steps \(16, 5\): must be low, high"),
        ("train.episode_steps=[0, 5]", "train.episode_steps"),
        ("evaluate.epochs=[]", "evaluate.epochs"),
        ("evaluate.epochs=[12, 0]", "evaluate.epochs"),
    ],
)
def test_lengths_of_episodes_are_at_least_one_epoch_and_a_range_rises(change: str, words: str) -> None:
    with pytest.raises(SimicError, match=words):
        params.load(ROOT / "params.yaml", [change])


def test_the_lengths_that_follow_from_a_range() -> None:
    tree = params.load(ROOT / "params.yaml", ["train.episode_steps=[4, 7]", "evaluate.epochs=null"])
    train = tree.train
    assert (train.shortest_episode, train.middle_episode, train.longest_episode) == (4, 6, 7)
    assert tree.lengths == (7,)  # the longest, where none are named
    assert params.load(ROOT / "params.yaml", ["evaluate.epochs=[6, 12]"]).lengths == (6, 12)
