"""What a run keeps: no checkpoint once it is loaded, no tensor more after many iterations than after few, no file
anywhere but in its work directory.
"""

import gc
import weakref

import torch
from small_runs import Watcher, run, small_params

from simic.training import resume
from simic.training.session import open_session
from simic.training.trainer import train


def tensors():
    """All that are alive and were not before."""
    gc.collect()
    # By type: isinstance would ask lazy objects of other libraries for their class.
    return [tensor for tensor in gc.get_objects() if issubclass(type(tensor), torch.Tensor)]


class Census(Watcher):
    """Counts the tensors alive at the end of each iteration, without those of grown seeds."""

    def __init__(self, env):
        super().__init__()
        self.env, self.counts = env, []

    def on_iteration(self, update, episode):
        self.env.reset(
            options={"iteration": 0}
        )  # no seeds: how many there are depends on what was played
        alive = tensors()
        self.counts.append(
            (len(alive), sum(tensor.numel() * tensor.element_size() for tensor in alive))
        )


def test_iterations_leave_no_tensors_behind(prepared, tmp_path):
    with open_session(
        small_params(iterations=3, validate_every=100), tmp_path, prepared
    ) as session:
        census = Census(session.env)
        gc.freeze()  # what other tests have left is not looked through
        try:
            train(session, [census])
        finally:
            gc.unfreeze()
    assert len(set(census.counts[1:])) == 1, census.counts


def test_a_loaded_checkpoint_is_let_go(copied, prepared, monkeypatch):
    references = []
    choose = resume.choose

    def remember(*arguments):
        start = choose(*arguments)
        references.extend(weakref.ref(tensor) for tensor in start.checkpoint.tensors.values())
        return start

    monkeypatch.setattr(resume, "choose", remember)
    with open_session(small_params(), copied, prepared) as session:
        gc.collect()
        assert session.state.counters.iteration == 4
        assert references
        assert [ref for ref in references if ref() is not None] == []


def test_a_run_writes_only_into_its_work_directory(prepared, tmp_path, monkeypatch):
    elsewhere, work = tmp_path / "elsewhere", tmp_path / "work"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    before = sorted(path.name for path in prepared.iterdir())
    run(work, prepared, params=small_params(iterations=1))
    assert list(elsewhere.iterdir()) == []
    assert sorted(path.name for path in prepared.iterdir()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "work"]
