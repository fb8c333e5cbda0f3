"""A program that has set torch otherwise gets the same numbers, and keeps its settings."""

import multiprocessing
import os
import threading

import pytest
import torch

from simic import threads
from simic.agent import Agent
from simic.agent.agent import sizes
from simic.torch_modes import as_before

PLAIN = sizes(core="gru", encoder_units=8, core_units=8, head_units=8)


def learned() -> dict[str, torch.Tensor]:
    agent = Agent("CartPole-v1", envs=4, rollout_steps=8, policy=PLAIN)
    agent.train(32)
    assert len(agent.evaluate(1)) == 1
    return agent.tensors()


@pytest.fixture(scope="module")
def usual() -> dict[str, torch.Tensor]:
    return learned()


@pytest.mark.parametrize(
    "mode",
    ["inference_mode", "no_grad", "float64", "autocast"],
)
def test_an_agent_learns_the_same_in_every_mode(mode: str, usual: dict) -> None:
    if mode == "float64":
        torch.set_default_dtype(torch.float64)
    modes = {
        "inference_mode": torch.inference_mode(),
        "no_grad": torch.no_grad(),
        "float64": torch.enable_grad(),
        "autocast": torch.autocast("cpu", dtype=torch.bfloat16),
    }
    try:
        with modes[mode]:
            tensors = learned()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(tensor, tensors[name].to(tensor)) for name, tensor in usual.items())


def settings() -> list:
    return [
        torch.get_default_dtype(),
        torch.get_deterministic_debug_mode(),
        torch.utils.deterministic.fill_uninitialized_memory,  # pyright: ignore[reportAttributeAccessIssue]
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        multiprocessing.get_start_method(allow_none=True),
        threads.count(),
        torch.is_grad_enabled(),
    ]


def test_settings_are_put_back_by_the_last_of_several_threads(monkeypatch) -> None:
    """Each would otherwise put back what another had set."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = settings()
    is_inside = threading.Event()
    may_leave = threading.Event()

    def first() -> None:
        with as_before():
            torch.set_deterministic_debug_mode("error")
            is_inside.set()
            may_leave.wait()

    thread = threading.Thread(target=first)
    thread.start()
    is_inside.wait()
    with torch.inference_mode(), as_before():
        assert torch.is_grad_enabled() and not torch.ones(1).is_inference()
        may_leave.set()
        thread.join()
        torch.backends.cudnn.allow_tf32 = not before[4]
        threads.set_count(2)
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
        multiprocessing.set_start_method("spawn", force=True)
    assert settings() == before
