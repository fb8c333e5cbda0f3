"""Conclusions that benchmarks draw from what they measured, and the page that states them; speeds are no test."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import agent, controller, page, rules
from benchmarks.agent_tasks import EPISODES, GRID, TASKS, PlatformOfLevels, PlatformOfNumbers
from benchmarks.speed_gate import GATES, RESULT
from examples.extensions.hybrid import Platform
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
        cell |= {
            "code": agent.code(algorithm),
            "steps": agent.whole_steps(task, job.rng_seed),
            "shared": agent.TASKS[task].shared,
        }
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


def test_tuning_takes_half_of_the_steps_and_what_was_run_with_other_settings_is_run_again(
    work, monkeypatch
) -> None:
    [job, *_] = agent.tuning("CartPole-v1", "sb3 PPO", work)
    assert agent.whole_steps("CartPole-v1", job.rng_seed) == 30 * 1024  # 30,000 rounded up
    assert agent.whole_steps("CartPole-v1", 1) == 59 * 1024
    assert job.cell()
    monkeypatch.setitem(agent.SHARED, "gamma", 0.5)
    assert job.cell() is None


def test_everyone_is_compared_with_every_peer_of_a_task(tmp_path) -> None:
    rates = [config["learning_rate"] for config in GRID]
    ours, *peers = TASKS["Platform"].rivals
    for name, final in ((ours, 470.0), *((peer, 400.0) for peer in peers)):
        fill(tmp_path, "Platform", name, dict.fromkeys(rates, final), 5)
    pairs = agent.summary(tmp_path)["tasks"]["Platform"]["pairs"]
    assert [pair["theirs"] for pair in pairs] == peers
    assert [pair["difference"] for pair in pairs] == pytest.approx([70.0, 70.0])


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.1, 2.0, "ahead"), (-0.9, 2.0, "level"), (-3.0, 2.0, "undecided"), (-3.0, -0.1, "behind")],
)
def test_the_table_says_who_is_ahead_and_who_behind(work, low, high, word) -> None:
    """5 % of the threshold are 1."""
    task = agent.summary(work)["tasks"]["CartPole-v1"] | {"margin": 1.0}
    [pair] = task["pairs"]
    task["pairs"] = [pair | {"difference": 0.05, "low": low, "high": high}]
    results = {"agent": {"tasks": {"CartPole-v1": task}, "provenance": defaultdict(str)}}
    text = page.text(results)
    # Half a point for each of 1, 2, 3, 0 and 1 above 470 and 480.
    assert f"| {word}: +0.1 [{low:+.1f}, {high:+.1f}] |" in text
    assert "| CartPole-v1, 475 | simic, sb3 PPO | 470.7, 480.7 | 5/5, 5/5 |" in text


# --- tasks made for the comparison ---


def test_platform_is_the_same_for_who_has_no_hybrid_actions() -> None:
    """A leap of 1.6, halfway from 1.0 to 2.2."""
    numbers = PlatformOfNumbers(Platform()).action(np.array([-1.0, 0.2, 0.9, 0.5, 0.5, 0.0]))
    levels = PlatformOfLevels(Platform()).action(np.array([2, 10, 0, 5]))
    for action in (numbers, levels):
        assert action["move"] == 2
        assert action["leap"] == pytest.approx(1.6)
        assert Platform.action_space.contains(action)
    # Shares of the reaches of running, 0 to 0.6, and of hopping, 0.3 to 1.2.
    assert (numbers["run"], numbers["hop"]) == (pytest.approx(0.45), pytest.approx(0.975))
    assert (levels["run"], levels["hop"]) == (pytest.approx(0.6), pytest.approx(0.3))


@pytest.mark.parametrize("task", ["Pendulum-v1", "Platform", "T-maze of length 50", "Maze"])
def test_every_kind_of_rival_learns_and_plays(task: str, tmp_path, monkeypatch) -> None:
    """A rollout each, to be found again afterwards."""
    short = replace(TASKS[task], steps=1)
    monkeypatch.setitem(agent.TASKS, task, short)
    for algorithm in short.rivals:
        job = agent.Job(task, algorithm, GRID[0], 1, tmp_path)
        assert job.cell() is None
        agent.execute(job)
        cell = job.cell()
        assert cell is not None
        assert len(cell["returns"]) == EPISODES
        assert cell["steps"] == short.rollout


def test_the_page_is_what_all_results_say() -> None:
    """Results of which nothing is said are not kept; some are read by tests."""
    results = {
        path.stem: json.loads(path.read_bytes()) for path in (ROOT / page.RESULTS).glob("*.json")
    }
    assert (ROOT / page.PAGE).read_text(encoding="utf-8") == page.text(results), (
        "run python -m benchmarks.page"
    )
    assert results.keys() <= {*page.SECTIONS, "mutants", "speed_gate", "together", "together_bank"}


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
