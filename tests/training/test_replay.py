"""An iteration that training kept gives the same bytes when it is played and learned again."""

import numpy as np
import pytest
from safetensors.torch import load_file
from small_runs import run, small_params

from simic.telemetry import publish, recorder
from simic.training import kept_iteration
from simic.training.checkpoint import read
from simic.training.replay import NotReplayable, replay
from tests.training import test_gym_task as gym


def kept_state(work, number, folder):
    """The state before an iteration, as it is published."""
    log = recorder.Chain.of(work / "telemetry")
    extent = recorder.Extent(len(log.sha256), log.sha256[max(log.sha256)])
    publish.publish(work, extent, folder, [number])
    return load_file(folder / publish.KEPT_FILE.format(number))


def row_of(work, number):
    [file] = [
        file
        for file in recorder.read(work / "telemetry")
        if file.update and file.update.iteration == number
    ]
    return file


def assert_equal(replayed, file):
    assert (replayed.state_begun, replayed.state_ended) == (
        file.update.state_begun,
        file.update.state_ended,
    )
    assert replayed.metrics == pytest.approx(file.update.metrics, rel=0, abs=0, nan_ok=True)
    for table, columns in (("steps", replayed.columns.steps), ("train", replayed.columns.episodes)):
        recorded = file.columns(table)
        assert columns.keys() == recorded.keys()
        for name, values in columns.items():
            np.testing.assert_array_equal(values, recorded[name], err_msg=name)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_growth_iteration_comes_out_the_same_in_another_number_of_processes(
    prepared, tmp_path, processes
):
    params = small_params({"processes": 3 - processes}, envs=8, iterations=2)
    run(tmp_path / "work", prepared, params=params)
    tensors = kept_state(tmp_path / "work", 1, tmp_path / "published")
    manifest = read(tmp_path / "work" / "checkpoints" / "000002").manifest
    assert_equal(
        replay(params, prepared, 1, tensors, manifest, processes), row_of(tmp_path / "work", 1)
    )
    other = manifest.model_copy(
        update={"machine": manifest.machine.model_copy(update={"threads": 99})}
    )
    with pytest.raises(NotReplayable, match="trained on another machine: threads"):
        replay(params, prepared, 1, tensors, other, processes)


def test_an_iteration_of_an_environment_comes_out_the_same(tmp_path):
    params = gym.small(core="gru")
    gym.gym_env.prepare(params.prepare.gym, 1, tmp_path / "prepared")
    gym.run(params, tmp_path / "work", tmp_path / "prepared")
    tensors = kept_state(tmp_path / "work", 2, tmp_path / "published")
    manifest = read(tmp_path / "work" / "checkpoints" / "000003").manifest
    assert_equal(
        replay(params, tmp_path / "prepared", 2, tensors, manifest), row_of(tmp_path / "work", 2)
    )


def test_what_is_kept_does_not_depend_on_how_long_training_is():
    params = small_params()
    kept = {
        count: kept_iteration.chosen(small_params(iterations=count, horizon=None))
        for count in range(1, 200)
    }
    assert all(kept[count] == [number for number in kept[199] if number < count] for count in kept)
    assert all(kept[count][-1] >= 0.6 * (count - 1) for count in kept) and kept[3] == [0, 1, 2]
    assert kept_iteration.published(params) == [0, 1, 2, 3]
