"""Params of a run of seconds, and what it means that two runs are the same."""

from pathlib import Path

from simic.params import Params, Policy, Runtime, Train
from simic.training.checkpoint import read

SIZES = {"encoder_units": 16, "core_units": 16, "head_units": 8, "embedding_units": 2}


def small_params(runtime: dict | None = None, **changes: object) -> Params:
    settings = {"envs": 4, "episode_steps": 3, "batches_per_epoch": 2, "iterations": 4, "validate_every": 2}
    settings |= {"policy": Policy(**SIZES), **changes}
    return Params(train=Train(**settings), runtime=Runtime(**{"threads": 1, **(runtime or {})}))


def assert_same_run(work: Path, other: Path) -> None:
    """Every byte of checkpoints and telemetry; the timing log has the same iterations."""
    names = sorted(path.name for path in (other / "checkpoints").iterdir())
    assert sorted(path.name for path in (work / "checkpoints").iterdir()) == names
    for name in names:
        own, theirs = read(work / "checkpoints" / name), read(other / "checkpoints" / name)
        assert own.manifest == theirs.manifest
        assert own.tensors.keys() == theirs.tensors.keys()
        for key in own.tensors:
            assert own.tensors[key].numpy().tobytes() == theirs.tensors[key].numpy().tobytes(), key
        for file in ("state.safetensors", "manifest.json"):
            assert (own.path / file).read_bytes() == (theirs.path / file).read_bytes()
    assert (work / "telemetry.jsonl").read_bytes() == (other / "telemetry.jsonl").read_bytes()
