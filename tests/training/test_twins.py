"""Where groups of twins meet training: which process has them, and what validation makes of them."""

import numpy as np
import pytest
import torch
from small_runs import small_params

from simic.errors import SimicError
from simic.training.ranks import Ranks
from simic.training.session import compose, open_session
from simic.training.validation import validate


def test_a_group_of_twins_has_one_host_and_is_in_one_process(prepared):
    device, tree = torch.device("cpu"), small_params(envs=8, twins=2)
    for rank, hosts in ((0, [0, 0, 1, 1]), (1, [2, 2, 3, 3])):
        env, _ = compose(tree, prepared, device, Ranks(rank, 2))
        assert env.host_ids.tolist() == hosts
    with pytest.raises(SimicError, match=r"train.twins = 4: each process has 2 environments, which must be a multiple"):
        compose(small_params(envs=8, twins=4), prepared, device, Ranks(0, 4))


def test_twins_of_training_are_hosts_of_their_own_in_a_validation(prepared, tmp_path):
    found = []
    for twins in (1, 2):
        tree = small_params(twins=twins, validate_every=9)
        with open_session(tree, tmp_path / str(twins), prepared) as session:
            found.append(validate(session.env, session.policy, session.state.normalizers, lambda: None))
            session.env.reset()
            assert session.env.host_ids.tolist() == [host // twins for host in range(4)]
    assert found[0].keys() == found[1].keys()
    assert all(np.array_equal(found[0][name], found[1][name], equal_nan=True) for name in found[0])
    first, second, third, fourth = found[0]["return"].tolist()
    assert first != second and third != fourth
