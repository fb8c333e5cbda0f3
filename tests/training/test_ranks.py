"""Processes with parts of the environments learn what one learns with all of them; the processes are real."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import numpy as np
import pytest
from torch.distributed import TCPStore

from simic.errors import SimicError
from simic.training import ranks
from simic.training.ranks import ALONE, Ranks
from tests.helpers import in_two_ranks
from tests.training import distributed_worker

COUNTED = ("steps", "samples", "samples_by_head", "stopped_early", "epochs")
MEASURED = (
    "policy_loss",
    "value_loss",
    "approx_kl",
    "update_kl",
    "explained_variance",
    "grad_norm",
)


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> list[dict]:
    """What each of two processes has after three updates of every case."""
    out = tmp_path_factory.mktemp("two") / "found"
    in_two_ranks(out.parent, partial(distributed_worker.learn_all, out))
    return [json.loads(out.with_suffix(f".{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("case", distributed_worker.CASES)
def test_two_processes_with_half_the_environments_equal_one_with_all(case, learned) -> None:
    """In float64; and they have the very same parameters."""
    expected, tolerance = distributed_worker.learn(ALONE, case), 1e-9
    for name in ("weights", "scales"):
        assert learned[1][case][name] == learned[0][case][name]
    assert np.std(expected["weights"]) > 0.05
    for result in (rank[case] for rank in learned):
        np.testing.assert_allclose(result["weights"], expected["weights"], rtol=0, atol=tolerance)
        for name, values in expected["scales"].items():
            assert np.allclose(result["scales"][name], values, rtol=tolerance, atol=tolerance), name
        assert result["learning_rate"] == expected["learning_rate"]
        for reference, shared in zip(expected["metrics"], result["metrics"], strict=True):
            assert shared["first_ratio_ok"]
            for name in COUNTED:
                assert shared[name] == reference[name], name
            for name in MEASURED:
                close = pytest.approx(reference[name], rel=100 * tolerance, abs=tolerance)
                assert shared[name] == close, name
        assert case != "stops" or any(metrics["stopped_early"] for metrics in result["metrics"])


def test_restarted_processes_do_not_find_the_addresses_of_the_dead(monkeypatch) -> None:
    """torchrun keeps one store for all its attempts."""
    agent = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, value in {"ADDR": "127.0.0.1", "PORT": str(agent.port)}.items():
        monkeypatch.setenv(f"MASTER_{name}", value)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    attempts = []
    with ThreadPoolExecutor(3) as processes:
        for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
            started = {rank: processes.submit(ranks._store, rank, 3) for rank in order}
            attempts.append([started[rank].result(timeout=60) for rank in range(3)])
            agent.set("ask/2", "of one that died before the first answered")
    attempts[0][0].set("0", "an address")
    assert [[store.check(["0"]) for store in attempt] for attempt in attempts] == [
        [True] * 3,
        [False] * 3,
        [False] * 3,
    ]


def test_the_first_process_does_not_wait_for_ever(monkeypatch) -> None:
    monkeypatch.setattr(ranks, "PATIENCE", timedelta(seconds=0.2))
    agent = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(ranks, "rendezvous", lambda *rest, **more: iter([(agent, 0, 2)]))
    with pytest.raises(SimicError, match="only 1 of 2 processes have come within"):
        ranks._store(0, 2)


def test_environments_are_shared_out_evenly_or_not_at_all() -> None:
    assert [Ranks(rank, 3).env_ids(6).tolist() for rank in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(SimicError, match=r"train.envs = 7: must be a multiple of the 3 processes"):
        Ranks(0, 3).env_ids(7)
