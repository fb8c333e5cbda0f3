"""Rows say what was measured."""

import torch
from small_runs import small_params, steps_of

from simic.training.session import open_session
from simic.training.trainer import train


def test_rows_have_the_gradient_norms_that_the_population_measured(prepared, tmp_path, monkeypatch):
    measured = []
    with open_session(small_params(envs=8, episode_steps=6, iterations=1), tmp_path, prepared) as session:
        epoch = session.env.population.train_epoch

        def watched(*arguments):
            measured.append(epoch(*arguments))
            return measured[-1]

        monkeypatch.setattr(session.env.population, "train_epoch", watched)
        train(session)
    steps = steps_of(tmp_path)
    assert len(steps) == 6
    for row, stats in zip(steps, measured, strict=False):  # the validation episodes, which have no rows, come after
        for name in ("host_grad_norm", "seed_grad_norm"):
            assert torch.equal(torch.tensor(getattr(row, name)).nan_to_num(-1), getattr(stats, name).nan_to_num(-1))
    seeds = torch.tensor([row.seed_grad_norm for row in steps])
    assert all(column.isfinite().any() for column in seeds.unbind(2)), "seeds trained in every slot"
