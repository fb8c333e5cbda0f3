"""Conclusions that benchmarks draw from what they measured, and the page that states them; speeds are no test."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from benchmarks import agent, controller, page, population, rules, scaling
from benchmarks.agent_tasks import GRID, TASKS, Maze, PickLegal
from simic import params
from simic.errors import SimicError
from simic.evaluation import result
from simic.pipeline.paths import Workspace
from tests.helpers import some
from tests.pipeline.small_suite import TINY

ROOT = Path(__file__).parents[1]

# --- the agent beside its peers ---


def fill(work: Path, task: str, algorithm: str, finals: dict[float, float], seeds: int) -> None:
    """Cells whose final return is by learning rate, plus a little by rng seed."""
    jobs = agent.tuning(task, algorithm, work)
    jobs += [agent.Job(task, algorithm, config, seed, work) for config in GRID for seed in range(1, seeds + 1)]
    for job in jobs:
        final = finals[job.config["learning_rate"]] + 0.5 * (job.rng_seed % 4)
        cell = {"config": job.config, "rng_seed": job.rng_seed, "returns": [final, final], "steps_per_second": 100.0}
        cell |= {"code": agent.code(algorithm), "steps": agent.whole_steps(task)}
        cell |= {"steps_to_solve": 2048 if final > 400 else None, "curve": [[1024, 20.0], [2048, final]]}
        job.path.parent.mkdir(parents=True, exist_ok=True)
        job.path.write_text(json.dumps(cell))


@pytest.fixture
def work(tmp_path) -> Path:
    rates = [config["learning_rate"] for config in GRID]
    fill(tmp_path, "CartPole-v1", "simic", dict(zip(rates, (100.0, 470.0, 200.0), strict=True)), 5)
    fill(tmp_path, "CartPole-v1", "sb3 PPO", dict(zip(rates, (100.0, 200.0, 480.0), strict=True)), 5)
    fill(tmp_path, "CartPole without velocities", "simic LSTM", dict(zip(rates, (100.0, 90.0, 80.0), strict=True)), 5)
    return tmp_path


def test_everyone_is_tuned_on_seeds_of_its_own_and_compared_by_welch(work) -> None:
    found = agent.summary(work)["tasks"]
    assert list(found) == ["CartPole-v1", "CartPole without velocities"]
    rows, [pair] = found["CartPole-v1"]["rows"], found["CartPole-v1"]["pairs"]
    assert [row["config"]["learning_rate"] for row in rows.values()] == [1e-3, 3e-3]
    assert rows["simic"]["rng_seeds"] == [1, 2, 3, 4, 5]
    ours, theirs = (np.array(rows[name]["final_returns"]) for name in ("simic", "sb3 PPO"))
    assert pair["difference"] == pytest.approx(-10.0)
    # Welch by hand: standard error and the degrees of freedom of Satterthwaite.
    parts = [x.var(ddof=1) / len(x) for x in (ours, theirs)]
    error = np.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(part**2 / 4 for part in parts)
    half = stats.t.ppf(0.975, freedom) * error
    assert pair["low"] == pytest.approx(-10.0 - half)
    assert pair["high"] == pytest.approx(-10.0 + half)
    assert pair["not_behind"]  # 5 % of 475 is 23.75
    assert rows["simic"]["median_steps_to_solve"] == 2048
    alone = found["CartPole without velocities"]
    assert alone["rows"]["simic LSTM"]["config"] == {"learning_rate": 3e-4}
    assert alone["rows"]["simic LSTM"]["median_steps_to_solve"] is None
    assert alone["pairs"] == []


def test_a_missing_tuning_cell_keeps_an_algorithm_out(work) -> None:
    agent.tuning("CartPole-v1", "simic", work)[0].path.unlink()
    assert agent.tuned("CartPole-v1", "simic", work) is None
    assert "simic" not in agent.summary(work)["tasks"]["CartPole-v1"]["rows"]


def test_runs_are_done_once_by_this_code_and_for_these_steps(work, monkeypatch) -> None:
    job = agent.tuning("CartPole-v1", "simic", work)[0]
    done = json.loads(job.path.read_text())
    assert job.cell() == done
    monkeypatch.setattr(agent, "execute", None)  # would be called
    agent.run(agent.tuning("CartPole-v1", "simic", work), 1)
    for changed in ({"code": "other"}, {"steps": 2 * done["steps"]}):
        job.path.write_text(json.dumps(done | changed))
        assert job.cell() is None


def test_the_page_is_what_all_results_say() -> None:
    """Results of which nothing is said are not kept; some are read by tests."""
    results = {path.stem: json.loads(path.read_bytes()) for path in (ROOT / page.RESULTS).glob("*.json")}
    assert (ROOT / page.PAGE).read_text(encoding="utf-8") == page.text(results), "run python -m benchmarks.page"
    assert results.keys() <= {*page.SECTIONS, "calibration", "canary", "mutants", "speed_gate"}


def test_masked_task_pays_for_the_best_legal_choice_alone() -> None:
    env = PickLegal()
    env.reset(seed=3)
    total, ended = 0.0, False
    for _ in range(PickLegal.LENGTH):
        assert env.action_masks().sum() == PickLegal.LEGAL
        best = max(np.flatnonzero(env.action_masks()), key=lambda choice: env.numbers[choice])
        _, reward, ended, _, _ = env.step(int(best))
        total += reward
    assert total == PickLegal.LENGTH
    assert ended
    with pytest.raises(ValueError, match="not legal"):
        env.step(int(np.flatnonzero(~env.action_masks())[0]))


def test_maze_can_be_left_from_everywhere_and_forbids_its_walls() -> None:
    env = Maze()
    env.reset(seed=1)
    free = {(r, c) for r in range(7) for c in range(7) if Maze.WALLS[r][c] == "."}
    distance, edge = {(6, 6): 0}, [(6, 6)]
    for cell in edge:  # breadth first, from the goal
        for row, column in Maze.MOVES:
            following = (cell[0] + row, cell[1] + column)
            if following in free and following not in distance:
                distance[following] = distance[cell] + 1
                edge.append(following)
    assert distance.keys() == free
    best = np.mean([1 - 0.02 * steps for cell, steps in distance.items() if steps])
    assert best > TASKS["Maze"].solved + TASKS["Maze"].margin
    for cell in free - {(6, 6)}:
        env.cell = cell
        for action, legal in enumerate(env.action_masks()):
            after = (cell[0] + Maze.MOVES[action][0], cell[1] + Maze.MOVES[action][1])
            assert legal == (after in free)
        for action in np.flatnonzero(~env.action_masks()):
            with pytest.raises(ValueError, match="not legal"):
                env.step(int(action))


# --- hosts ---


@pytest.mark.parametrize("case", some(list(population.CASES), "small"))
def test_hosts_are_timed_beside_plain_modules(case, tmp_path, monkeypatch) -> None:
    """With little of everything; what is there is not measured again."""
    out = tmp_path / "population.json"
    monkeypatch.setattr(population, "TIMED_BATCHES", 1)
    little = replace(population.CASES[case], training=8, batch=4)
    monkeypatch.setitem(population.CASES, case, little)
    command = f"population --cases {case} --envs 1 2 --repeats 1 --device cpu --out {out}"
    monkeypatch.setattr("sys.argv", command.split())
    population.main()
    found = json.loads(out.read_text())
    assert [(row["case"], row["envs"]) for row in found["rows"]] == [(case, 1), (case, 2)]
    for row in found["rows"]:
        seconds = row["training_seconds"]
        best = min(seconds[name] for name in ("plain", "plain channels-last") if name in seconds)
        assert row["speedup"]["loop"] == pytest.approx(best / seconds["loop"])
        assert all(seconds[name] <= value for name, value in row["one_thread_seconds"].items())
    assert f"| 2 | {found['rows'][1]['speedup']['auto']:.2f} |" in page.text({"population": found})
    before = out.stat().st_mtime_ns
    population.main()
    assert out.stat().st_mtime_ns == before


def test_hosts_can_be_measured_where_nothing_can_be_drawn() -> None:
    code = "import sys; sys.modules['matplotlib'] = None; import benchmarks.population, benchmarks.scaling"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.slow
def test_trainings_are_counted_by_core_and_second(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    out = tmp_path / "scaling.json"
    few = ("prepare.suite.instances={train: 16, val: 4, held_out: 4, held_out_kinds: 4}", "train.batches_per_epoch=1")
    overrides = [word for each in few for word in ("-S", each)]
    scaling.main(["--hosts", "16", "--processes", "1", "2", "--epochs", "2", "--out", str(out), *overrides])
    found = json.loads(out.read_text())
    assert [(row["hosts"], row["processes"]) for row in found["rows"]] == [(16, 1), (16, 2)]
    for row in found["rows"]:
        assert row["trainings_per_core_second"] == pytest.approx(16 / row["seconds"] / row["processes"])
        assert 0 < row["update_seconds"] < row["seconds"]
    assert "| 16 | 2 | " in page.text({"scaling": found})


def test_the_rows_of_the_scaling_table_have_params_that_are_allowed() -> None:
    tree = params.load(ROOT / "params.yaml", scaling.settings(4096, 2, 12))
    assert (tree.train.envs, tree.train.middle_episode, tree.runtime.processes) == (4096, 12, 2)


# --- rules and controllers ---


def test_the_table_of_rules_has_each_mean_and_its_lead_over_the_rule() -> None:
    first = {"held_out": {"tuned_rule": np.array([70.0, 72.0, 74.0]), "chooser": np.array([71.0, 73.0, 75.5])}}
    second = {"held_out": {"tuned_rule": np.array([80.0, 82.0, 84.0]), "chooser": np.array([79.0, 82.0, 82.0])}}
    text = rules.table({6: first, 9: second})
    assert "## On 3 held-out tasks of known kinds" in text
    # Differences 1, 1, 1.5: mean 7/6, standard error 1/6, t = 4.303.
    assert "| 6 | 72.0 | 73.2, +1.2 [0.4, 1.9] |" in text
    assert "| 9 | 82.0 | 81.0, -1.0 [-3.5, 1.5] |" in text


TINY_CONTROLLER = [
    *TINY, "train.actions.blueprint=[norm]", "train.price=0.0", "prepare.suite.instances.held_out_kinds=2",
    "headroom.policies=[patient]", "evaluate.static_final=false",
]  # fmt: skip


@pytest.fixture(scope="module")
def controllers(tmp_path_factory) -> tuple[Path, dict]:
    """Two trainings of a controller on one bank; read only."""
    work = tmp_path_factory.mktemp("controllers")
    controller.main(controller_arguments(work))
    return work, json.loads((work / "found.json").read_text())


def controller_arguments(work: Path, *overrides: str) -> list[str]:
    given = [word for override in (*TINY_CONTROLLER, *overrides) for word in ("-S", override)]
    return ["--seeds", "2", "--work", str(work), "--out", str(work / "found.json"), *given]


@pytest.mark.slow
def test_controllers_are_scored_by_what_their_evaluations_say(controllers) -> None:
    work, found = controllers
    headroom = result.read_headroom(Workspace(work / "base").headroom)
    evaluations = [result.read(Workspace(work / f"seed_{seed}").evaluation) for seed in (1, 2)]
    assert found["seeds"] == 2 and list(found["episodes_of"]) == ["10 epochs", *headroom.others]
    states = [Workspace(work / f"seed_{seed}").checkpoints / "best" / "state.safetensors" for seed in (1, 2)]
    assert states[0].read_bytes() != states[1].read_bytes()
    assert len(found["curves"]) == 2 and (work / "found.png").stat().st_size > 10_000
    for seed, curve in enumerate(found["curves"], 1):
        updates = pq.read_table(Workspace(work / f"seed_{seed}").telemetry / "updates.parquet").to_pylist()
        scored = [row for row in updates if not np.isnan(row["validation_accuracy"])]
        assert curve["episodes"] == [4 * (row["iteration"] + 1) for row in scored] and curve["episodes"]
        assert curve["score"] == pytest.approx([row["validation_accuracy"] for row in scored], abs=0.01)
    elsewhere = {length: [each.others[length] for each in evaluations] for length in headroom.others}
    for length, own in {"10 epochs": evaluations, **elsewhere}.items():
        for group, standings in own[0].standings.items():
            table = found["episodes_of"][length][group]
            for name in [each for each in controller.POLICIES if each in standings.policies]:
                each = [evaluation.standings[group].policies[name] for evaluation in own]
                assert table[name]["score_by_seed"] == pytest.approx([one.score.estimate for one in each], abs=0.01)
                for key in ("over_common", "over_rule"):
                    mean = np.mean([getattr(one, key).estimate for one in each])
                    assert table[name][key][0] == pytest.approx(mean, abs=0.001)
            assert table["beside"]["patient"] == pytest.approx(standings.policies["patient"].score.estimate, abs=0.01)


@pytest.mark.slow
def test_controllers_that_are_done_are_not_trained_again_and_other_params_are_not_mixed_in(controllers, monkeypatch):
    work, found = controllers
    before = (work / "params.json").read_bytes()
    for stage in ("prepare", "headroom", "train", "evaluate"):
        monkeypatch.setattr(controller.stages, stage, None)  # would be called
    controller.main(controller_arguments(work))
    assert json.loads((work / "found.json").read_text()) == found
    with pytest.raises(SimicError, match="has results of other params; name another folder with --work"):
        controller.main(controller_arguments(work, "train.price=1.0"))
    assert (work / "params.json").read_bytes() == before


def test_a_refused_benchmark_says_why_in_one_line(tmp_path) -> None:
    command = [sys.executable, "-m", "benchmarks.publish", str(tmp_path), "patches"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("publish: ") and len(done.stderr.splitlines()) == 1
