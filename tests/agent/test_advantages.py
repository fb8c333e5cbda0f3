"""Advantages against a scalar oracle."""

import random

import torch

from simic.agent.ppo import gae, normalized


def oracle(row: list[dict], gamma: float, lam: float) -> list[float]:
    """Σ_l (γ λ)^l δ_{t+l}, summed forward from every step until something ends; one environment, Python floats."""
    advantages = []
    for t in range(len(row)):
        total, weight = 0.0, 1.0
        for step in row[t:]:
            if not step["valid"]:
                break
            worth = 0.0 if step["terminated"] else step["next"]
            total += weight * (step["reward"] + gamma * worth - step["value"])
            if step["terminated"] or step["truncated"]:
                break
            weight *= gamma * lam
        advantages.append(total)
    return advantages


def random_case(source: random.Random) -> tuple[list[list[dict]], float, float]:
    rows: list[list[dict]] = []
    for _ in range(source.randint(1, 4)):
        cut = source.choice([None, None, 0, 1, 3])
        rows.append([])
        for t in range(8):
            numbers = {name: source.gauss(0, 1) for name in ("reward", "value", "next")}
            ends = {name: source.random() < 0.15 for name in ("terminated", "truncated")}
            rows[-1].append({**numbers, **ends, "valid": cut is None or t < cut})
    return rows, source.choice([0.0, 0.9, 0.995, 1.0]), source.choice([0.0, 0.5, 0.95, 1.0])


def test_advantages_equal_the_scalar_oracle_on_random_cases() -> None:
    source = random.Random(7)
    for _ in range(1000):
        rows, gamma, lam = random_case(source)

        def column(name: str, rows: list[list[dict]] = rows) -> torch.Tensor:
            values = torch.tensor([[step[name] for step in row] for row in rows]).t()
            return values if values.dtype == torch.bool else values.double()

        columns = [column(name) for name in ("reward", "value", "next", "terminated", "truncated", "valid")]
        advantages, returns = gae(*columns, gamma, lam)
        expected = torch.tensor([oracle(row, gamma, lam) for row in rows]).t().double()
        assert torch.allclose(advantages, expected, atol=1e-5)
        assert torch.allclose(returns, torch.where(columns[5], expected + columns[1], 0.0), atol=1e-5)


def test_a_terminal_state_may_have_no_value_at_all() -> None:
    one, flag = torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)
    advantages, _ = gae(one, 0 * one, torch.nan * one, flag, ~flag, flag, 0.9, 0.9)
    assert advantages.item() == 1.0


def test_normalised_over_valid_rows_alone() -> None:
    advantages = torch.tensor([[1.0, 2.0], [3.0, 1e9]])
    valid = torch.tensor([[True, True], [True, False]])
    # mean 2, population deviation sqrt(2/3)
    expected = torch.tensor([[-1.0, 0.0], [1.0, 0.0]]) / (2 / 3) ** 0.5
    assert torch.allclose(normalized(advantages, valid), expected)


def test_noise_is_not_blown_up_to_unit_size() -> None:
    advantages = torch.tensor([[1e-6, -1e-6]])
    assert torch.allclose(normalized(advantages, torch.ones(1, 2, dtype=torch.bool)), advantages / 0.1)
    assert normalized(advantages, torch.zeros(1, 2, dtype=torch.bool)).tolist() == [[0.0, 0.0]]
