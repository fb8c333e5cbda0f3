"""Conclusions that benchmarks draw from what they measured, and the page that states them; speeds are no test."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import agent, controller, page, rules
from benchmarks.agent_tasks import GRID
from benchmarks.speed_gate import GATES, RESULT
from tests.audit.synthetic import evaluation, headroom

ROOT = Path(__file__).parents[1]

# --- the agent beside its peers ---


def fill(work: Path, task: str, algorithm: str, finals: dict[float, float], seeds: int) -> None:
    """Cells whose final return is by learning rate, plus a little by rng seed."""
    jobs = agent.tuning(task, algorithm, work)
    jobs += [
        agent.Job(task, algorithm, config, seed, work)
        for config in GRID
        for seed in range(1, seeds + 1)
    ]
    for job in jobs:
        final = finals[job.config["learning_rate"]] + 0.5 * (job.rng_seed % 4)
        cell = {
            "config": job.config,
            "rng_seed": job.rng_seed,
            "returns": [final, final],
            "steps_per_second": 100.0,
        }
        cell |= {"code": agent.code(algorithm), "steps": agent.whole_steps(task)}
        cell |= {
            "steps_to_solve": 2048 if final > 400 else None,
            "curve": [[1024, 20.0], [2048, final]],
        }
        job.path.parent.mkdir(parents=True, exist_ok=True)
        job.path.write_text(json.dumps(cell))


@pytest.fixture
def work(tmp_path) -> Path:
    rates = [config["learning_rate"] for config in GRID]
    fill(tmp_path, "CartPole-v1", "simic", dict(zip(rates, (100.0, 470.0, 200.0), strict=True)), 5)
    fill(
        tmp_path, "CartPole-v1", "sb3 PPO", dict(zip(rates, (100.0, 200.0, 480.0), strict=True)), 5
    )
    return tmp_path


def test_everyone_is_tuned_on_seeds_of_its_own_and_compared_by_welch(work) -> None:
    tasks = agent.summary(work)["tasks"]
    assert list(tasks) == ["CartPole-v1"]
    rows, [pair] = tasks["CartPole-v1"]["rows"], tasks["CartPole-v1"]["pairs"]
    assert [row["config"]["learning_rate"] for row in rows.values()] == [1e-3, 3e-3]
    assert rows["simic"]["rng_seeds"] == [1, 2, 3, 4, 5]
    simic_returns, peer_returns = (
        np.array(rows[name]["final_returns"]) for name in ("simic", "sb3 PPO")
    )
    assert pair["difference"] == pytest.approx(-10.0)
    # Welch by hand: standard error and the degrees of freedom of Satterthwaite.
    parts = [x.var(ddof=1) / len(x) for x in (simic_returns, peer_returns)]
    error = np.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(part**2 / 4 for part in parts)
    half = stats.t.ppf(0.975, freedom) * error
    assert pair["low"] == pytest.approx(-10.0 - half)
    assert pair["high"] == pytest.approx(-10.0 + half)
    assert pair["not_behind"]  # 5 % of 475 is 23.75
    assert rows["simic"]["median_steps_to_solve"] == 2048


def test_the_page_is_what_all_results_say() -> None:
    """Results of which nothing is said are not kept; some are read by tests."""
    results = {
        path.stem: json.loads(path.read_bytes()) for path in (ROOT / page.RESULTS).glob("*.json")
    }
    assert (ROOT / page.PAGE).read_text(encoding="utf-8") == page.text(results), (
        "run python -m benchmarks.page"
    )
    assert results.keys() <= {*page.SECTIONS, "mutants", "speed_gate"}


# --- rules and controllers ---


def test_the_table_of_rules_has_each_mean_and_its_lead_over_the_rule() -> None:
    first = {
        "held_out": {
            "tuned_rule": np.array([70.0, 72.0, 74.0]),
            "chooser": np.array([71.0, 73.0, 75.5]),
        }
    }
    second = {
        "held_out": {
            "tuned_rule": np.array([80.0, 82.0, 84.0]),
            "chooser": np.array([79.0, 82.0, 82.0]),
        }
    }
    text = rules.table({6: first, 9: second})
    assert "## On 3 held-out tasks of known kinds" in text
    # Differences 1, 1, 1.5: mean 7/6, standard error 1/6, t = 4.303.
    assert "| 6 | 72.0 | 73.2, +1.2 [0.4, 1.9] |" in text
    assert "| 9 | 82.0 | 81.0, -1.0 [-3.5, 1.5] |" in text


def test_controllers_are_scored_by_what_their_evaluations_say() -> None:
    """Two training seeds, of which the second reaches two points more on every host."""
    measured = headroom()
    first = evaluation(measured=measured)
    learned = first.policies["learned"]
    accuracies = tuple(accuracy + 2.0 for accuracy in learned.per_seed.test_accuracy_pct)
    better = learned.per_seed.model_copy(update={"test_accuracy_pct": accuracies})
    policies = {**first.policies, "learned": learned.model_copy(update={"per_seed": better})}
    second = first.model_copy(update={"policies": policies})
    for group, table in controller.by_length(measured, [first, second])[
        f"{measured.epochs} epochs"
    ].items():
        policies_of_group = first.standings[group].policies
        score = policies_of_group["learned"].score.estimate
        assert table["learned"]["score_by_seed"] == pytest.approx([score, score + 2.0], abs=0.01)
        over = policies_of_group["learned"].over_common.estimate + 1.0
        assert table["learned"]["over_common"][0] == pytest.approx(over, abs=0.001)
        assert table["beside"]["static"] == pytest.approx(
            policies_of_group["static"].score.estimate, abs=0.01
        )


MAY_GROW = 1.05


@pytest.mark.parametrize("case", GATES)
def test_hosts_issue_no_more_operations_than_recorded(case: str) -> None:
    [before] = [
        gate["operations"]
        for gate in json.loads(RESULT.read_bytes())["gates"]
        if gate["case"] == case
    ]
    now = GATES[case].operations()
    assert now <= MAY_GROW * before, "slower; if it has to be: python -m benchmarks.speed_gate"
    assert now >= before / MAY_GROW, "faster: record it with python -m benchmarks.speed_gate"
