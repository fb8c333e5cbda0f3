"""What the benchmarks conclude from their cells, and the page that says it; the measuring itself is no test."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy import stats

from benchmarks import (
    agent,
    agent_cells,
    checkpointing,
    clean_runs,
    controller,
    host_profile,
    outage,
    page,
    pipeline,
    population,
    scaling,
)
from benchmarks.agent_tasks import GRID, TASKS, Maze, PickLegal
from simic import params
from simic.errors import SimicError
from simic.evaluation import result
from simic.pipeline.paths import Workspace
from tests.helpers import some
from tests.pipeline.small_suite import TINY

ROOT = Path(__file__).parents[1]


def fill(work: Path, task: str, algorithm: str, finals: dict[float, float], seeds: int) -> None:
    """Cells whose final return is by learning rate, plus a little by rng seed."""
    jobs = agent.tuning(task, algorithm, work)
    jobs += [agent.Job(task, algorithm, config, seed, work) for config in GRID for seed in range(1, seeds + 1)]
    for job in jobs:
        final = finals[job.config["learning_rate"]] + 0.5 * (job.rng_seed % 4)
        cell = {"config": job.config, "rng_seed": job.rng_seed, "returns": [final, final], "steps_per_second": 100.0}
        cell |= {"code": agent_cells.code(algorithm), "steps": agent_cells.whole_steps(task)}
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
    job = agent.tuning("CartPole-v1", "simic", work)[0]
    job.path.unlink()
    config, missing = agent.tuned("CartPole-v1", "simic", work)
    assert config is None
    assert [each.config for each in missing] == [job.config] * 2
    assert "simic" not in agent.summary(work)["tasks"]["CartPole-v1"]["rows"]


def test_behind_a_setting_that_cannot_be_beaten_none_is_tried(tmp_path) -> None:
    fill(tmp_path, "CartPole-v1", "simic", {3e-4: 499.0, 1e-3: 499.25, 3e-3: 0.0}, 0)
    for job in agent.tuning("CartPole-v1", "simic", tmp_path):
        if job.config == GRID[1]:
            job.path.write_text(job.path.read_text().replace("500.25", "500.0").replace("499.75", "500.0"))
        if job.config == GRID[2]:
            job.path.unlink()
    assert agent.tuned("CartPole-v1", "simic", tmp_path) == (GRID[1], [])


def test_runs_are_kept_and_put_back(work, tmp_path) -> None:
    for path in work.glob("*/*/*.json"):
        task, algorithm = (name.replace("_", " ") for name in path.parts[-3:-1])
        path.write_text(json.dumps(json.loads(path.read_text()) | {"task": task, "algorithm": algorithm}))
    expected = {path.relative_to(work): json.loads(path.read_text()) for path in work.glob("*/*/*.json")}
    agent.keep_runs(work, tmp_path / "runs.jsonl")
    agent.put_back(tmp_path / "runs.jsonl", tmp_path / "again")
    found = tmp_path / "again"
    assert {path.relative_to(found): json.loads(path.read_text()) for path in found.glob("*/*/*.json")} == expected


def test_runs_of_other_code_are_run_again_and_nothing_is_kept_of_nothing(work, tmp_path) -> None:
    job = agent.tuning("CartPole-v1", "simic", work)[0]
    done = json.loads(job.path.read_text())
    assert job.cell() == done
    for other in ({"code": "other"}, {"steps": 2 * done["steps"]}):
        job.path.write_text(json.dumps(done | other))
        assert job.cell() is None
    with pytest.raises(SystemExit, match="no runs there"):
        agent.keep_runs(tmp_path / "nowhere", tmp_path / "runs.jsonl")
    assert not (tmp_path / "runs.jsonl").exists()


def test_what_exists_is_not_run_again(work, monkeypatch) -> None:
    monkeypatch.setattr(agent, "execute", None)  # would be called
    agent.run(agent.tuning("CartPole-v1", "simic", work), 1)


def test_the_page_says_what_the_results_say(work) -> None:
    results = {"agent": {"provenance": page.provenance()} | agent.summary(work)}
    text = page.text(page.PAGE, results)
    assert "| simic | 5 | 0.001 | 470.7 (470.0 … 471.5) | 5 of 5 | 2,048 | 100 |" in text
    assert "- CartPole-v1, simic − sb3 PPO: -10.0, 95 % interval" in text
    assert "not behind (margin −23.75)" in text
    assert "## Speed of the agent" not in text


def test_the_pages_are_what_all_results_say() -> None:
    results = {path.stem: json.loads(path.read_bytes()) for path in (ROOT / page.RESULTS).glob("*.json")}
    for path in page.PAGES:
        assert (ROOT / path).read_text(encoding="utf-8") == page.text(path, results), "run python -m benchmarks.page"
    assert results.keys() == {name for _, _, sections in page.PAGES.values() for name in sections}


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


def test_every_task_has_a_peer_and_a_margin() -> None:
    for task in TASKS.values():
        assert task.margin > 0
        assert all(ours.startswith("simic") and theirs.startswith("sb3") for ours, theirs in task.rivals)


def test_hosts_are_timed_beside_plain_modules_and_the_page_tells_it(tmp_path, monkeypatch) -> None:
    out = tmp_path / "population.json"
    monkeypatch.setattr(population, "limits", lambda device: {"gflops": 100.0, "gigabytes_per_second": 5.0})
    monkeypatch.setattr(population, "PHASED", "small")
    monkeypatch.setitem(population.CASES, "small", replace(population.CASES["small"], training=128, validation=32))
    few = "--cases small --envs 1 2 --phases 2 --repeats 1 --steps 2 --device cpu --out"
    monkeypatch.setattr("sys.argv", ["population", *few.split(), str(out)])
    population.main()
    found = json.loads(out.read_text())
    for row in found["rows"]:
        seconds = row["training_seconds"]
        best = min(seconds["plain"], seconds["plain channels-last"])
        assert row["speedup"]["loop"] == pytest.approx(best / seconds["loop"])
        assert seconds["convolutions alone"] > 0
        assert all(seconds[name] <= value for name, value in row["one_thread_seconds"].items())
    before = out.stat().st_mtime_ns
    population.main()  # everything is there already
    assert out.stat().st_mtime_ns == before
    assert found["rows"][1]["gflop"] == pytest.approx(2 * found["rows"][0]["gflop"])
    assert [(row["envs"], row["seeds"]) for row in found["phases"]] == [(2, False), (2, True)]
    for row in found["phases"]:
        assert sum(row["seconds"].values()) == pytest.approx(row["total_seconds"])
        assert row["decisions_per_second"] == pytest.approx(row["envs"] * 2 / row["total_seconds"])
    text = page.text(page.DETAILS, {"population": found})
    assert f"| 2 | {found['rows'][1]['speedup']['auto']:.2f} |" in page.text(page.PAGE, {"population": found})
    assert "| 2 without seeds | " in text
    assert "host training" in text


@pytest.mark.parametrize("case", some([case for case in population.CASES if case != "small"], "default"))  # see above
def test_every_case_can_be_measured(case, tmp_path, monkeypatch, capsys) -> None:
    """A dry run of what is asked of a GPU, with little of everything."""
    little = replace(population.CASES[case], training=8, validation=8, batch=4)
    monkeypatch.setitem(population.CASES, case, little)
    monkeypatch.setattr(population, "limits", lambda device: {"gflops": 1.0, "gigabytes_per_second": 1.0})
    monkeypatch.setattr(population, "TIMED_BATCHES", 1)
    command = f"population --device cpu --cases {case} --envs 2 --phases --repeats 1 --fresh --out"
    monkeypatch.setattr("sys.argv", [*command.split(), str(tmp_path / "found.json")])
    population.main()
    [row] = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert (row["case"], row["envs"], row["speedup"].keys()) == (case, 2, set(population.BACKENDS))
    assert f"### {case}\n" in capsys.readouterr().out


def test_operations_are_told_by_their_kind() -> None:
    kinds = {
        "aten::mkldnn_convolution": "convolutions",
        "aten::convolution_backward": "convolutions",
        "aten::baddbmm": "matrix products",
        "aten::native_group_norm_backward": "norms",
        "aten::max_pool2d_with_indices": "pooling",
        "aten::index_select": "copies",
        "aten::addcmul_": host_profile.OTHER,
    }
    assert {name: host_profile.kind_of(name) for name in kinds} == kinds
    found = host_profile.by_kind([("aten::bmm", 1.0), ("aten::mm", 2.0), ("aten::add", 0.5)])
    assert found["matrix products"] == 3.0
    assert sum(found.values()) == 3.5


def test_a_minibatch_is_taken_apart_and_the_page_tells_it(tmp_path, monkeypatch) -> None:
    out = tmp_path / "host_profile.json"
    monkeypatch.setattr(host_profile, "RUNS", (("mlp", 2),))
    traces = str(tmp_path / "traces")
    monkeypatch.setattr("sys.argv", ["host_profile", "--device", "cpu", "--out", str(out), "--trace", traces])
    host_profile.main()
    found = json.loads(out.read_text())
    bare, seeded = found["rows"]
    assert bare["seconds"]["matrix products"] > 0
    assert bare["seconds"]["convolutions"] == 0
    assert seeded["operations"] > bare["operations"] > 10
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["mlp-2-seeds.json.gz", "mlp-2.json.gz"]
    (least,) = found["dispatch"]
    assert 0 < least["seconds"]["one plain network"] < least["seconds"]["hosts with seeds"]
    assert "mlp, 2 hosts, with seeds" in page.text(page.DETAILS, {"host_profile": found})


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


def by_task(headroom: result.HeadroomReport, values: tuple[float, ...], group: str) -> np.ndarray:
    """Mean over the rows of each task of a group."""
    tasks = [number for number, task in enumerate(headroom.tasks) if task.group == group]
    return np.array([np.mean([v for v, row in zip(values, headroom.rows, strict=True) if row == k]) for k in tasks])


@pytest.mark.slow
def test_controllers_are_scored_by_what_their_evaluations_say(controllers) -> None:
    work, found = controllers
    headroom = result.read_headroom(Workspace(work / "base").headroom)
    evaluations = [result.read(Workspace(work / f"seed_{seed}").evaluation) for seed in (1, 2)]
    assert found["seeds"] == 2 and list(found["episodes_of"]) == ["10 epochs", *headroom.others]
    states = [Workspace(work / f"seed_{seed}").checkpoints / "best" / "state.safetensors" for seed in (1, 2)]
    assert states[0].read_bytes() != states[1].read_bytes()
    for length, report in {"10 epochs": headroom, **headroom.others}.items():
        for group in report.standings:
            table = found["episodes_of"][length][group]
            common = by_task(report, tuple(row[report.common] for row in report.test_pct), group)
            rule = by_task(report, report.policies["patient"].test_accuracy_pct, group)
            assert table["beside"]["patient"] == pytest.approx(rule.mean(), abs=0.01)
            for name in controller.POLICIES:
                if length == "10 epochs":
                    policies = [each.policies[name].per_seed.test_accuracy_pct for each in evaluations]
                else:
                    policies = [each.others[length].per_seed[name].test_accuracy_pct for each in evaluations]
                scores = [by_task(report, policy, group) for policy in policies]
                assert table[name]["score_by_seed"] == pytest.approx([each.mean() for each in scores], abs=0.01)
                assert table[name]["over_common"][0] == pytest.approx(np.mean(scores - common), abs=0.001)
                assert table[name]["over_rule"][0] == pytest.approx(np.mean(scores - rule), abs=0.001)


@pytest.mark.slow
def test_curves_are_the_validations_of_each_training(controllers) -> None:
    work, found = controllers
    assert len(found["curves"]) == 2 and (work / "found.png").stat().st_size > 10_000
    for seed, curve in enumerate(found["curves"], 1):
        updates = pq.read_table(Workspace(work / f"seed_{seed}").telemetry / "updates.parquet").to_pylist()
        scored = [row for row in updates if not np.isnan(row["validation_accuracy"])]
        assert curve["episodes"] == [4 * (row["iteration"] + 1) for row in scored] and curve["episodes"]
        assert curve["score"] == pytest.approx([row["validation_accuracy"] for row in scored], abs=0.01)


@pytest.mark.slow
def test_the_share_of_the_gap_is_of_the_oracle_that_was_chosen_on_other_hosts(controllers) -> None:
    """Of edited files: one schedule is 30 points better everywhere, and what controllers reached is told apart."""
    work, _ = controllers
    headroom = result.read_headroom(Workspace(work / "base").headroom)
    evaluations = [result.read(Workspace(work / f"seed_{seed}").evaluation) for seed in (1, 2)]
    best = (headroom.common + 1) % len(headroom.schedules)

    def better(table: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
        return tuple((*row[:best], max(row) + 30.0 + number, *row[best + 1 :]) for number, row in enumerate(table))

    tables = {name: better(getattr(headroom, name)) for name in ("choosing_val_pct", "test_pct")}
    headroom = headroom.model_copy(update=tables)
    rule = by_task(headroom, headroom.policies["patient"].test_accuracy_pct, "held_out")
    oracle = by_task(headroom, tuple(row[best] for row in headroom.test_pct), "held_out")
    scores = {name: [] for name in controller.POLICIES}
    reached = []
    for seed, each in enumerate(evaluations):
        of_seed = {}
        for number, name in enumerate(controller.POLICIES):
            accuracy = tuple(60.0 + 7 * number + 5 * seed + 3 * row for row in range(len(headroom.rows)))
            of_seed[name] = each.policies[name].per_seed.model_copy(update={"test_accuracy_pct": accuracy})
            scores[name].append(by_task(headroom, accuracy, "held_out"))
        reached.append(of_seed)
    table = controller.summary(headroom, reached)["held_out"]
    for name, own in scores.items():
        share = np.mean(own - rule) / np.mean(oracle - rule)
        assert table[name]["rule_gap_closed"][0] == pytest.approx(share, abs=1e-3)


@pytest.mark.slow
def test_controllers_that_are_done_are_not_trained_again(controllers, monkeypatch, capsys) -> None:
    work, found = controllers
    for stage in ("prepare", "headroom", "train", "evaluate"):
        monkeypatch.setattr(controller.stages, stage, None)  # would be called
    controller.main(controller_arguments(work))
    assert json.loads((work / "found.json").read_text()) == found
    assert capsys.readouterr().out.count('"episodes_of"') == 2


@pytest.mark.slow
def test_controllers_of_other_params_are_not_mixed_in(controllers) -> None:
    work, _ = controllers
    before = (work / "params.json").read_bytes()
    with pytest.raises(SimicError, match="has results of other params; name another folder with --work"):
        controller.main(controller_arguments(work, "train.price=1.0"))
    assert (work / "params.json").read_bytes() == before


def test_a_refused_benchmark_says_why_in_one_line(tmp_path) -> None:
    command = [sys.executable, "-m", "benchmarks.publish", str(tmp_path), "patches"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("publish: ") and len(done.stderr.splitlines()) == 1


PIPELINE = {
    "provenance": {"cores": 2},
    "shares": {
        "iterations": 2,
        "envs": 10,
        "episode_steps": 5,
        "seconds": {"environment": 1.0, "telemetry": 0.5},
        "evaluate_seconds": 30.0,
        "audit_seconds": 10.0,
        "telemetry_bytes": 4e6,
        "checkpoint_bytes": 1e6,
    },
    "processes": {"1 × 2": 30.0, "2 × 1": 20.0},
    "growth": [
        {"iterations": 50, "mlflow_calls": 70, "mlflow_seconds_per_call": 0.02},
        {"iterations": 100, "mlflow_calls": 120, "mlflow_seconds_per_call": 0.01},
    ],
}


def test_a_study_is_computed_from_what_was_measured() -> None:
    text = " ".join(scaling.study(PIPELINE, iterations=10))
    # 10 × 20 s + 40 s = 4 minutes on 2 cores; 10,000 of them.
    assert "so 4.0 minutes a run and 1,333 core hours" in text
    assert "| 100 | 6.7 | 12.50 |" in text  # 100 workers: 10,000 × 240 s / 100, and 20 + 10 calls each in 240 s
    assert "21.0 MB of telemetry and checkpoints a run, 210 GB in all" in text
    assert "up to about 800 workers" in text  # 30 calls of 10 ms in 240 s keep the store busy for 1/800 of the time


def test_a_gpu_is_expected_to_be_bound_by_issuing_first_and_by_itself_then() -> None:
    seconds = {"one plain network": 0.001, "hosts": 0.005, "hosts with seeds": 0.01}
    text = " ".join(scaling.one_gpu({"dispatch": [{"case": "mlp", "seconds": seconds}]}, "mlp"))
    assert "| 1 | 10.0 | 10000.0 | 0.1 |" in text  # 10 ms whatever their number, where a plain network takes 1
    assert "| 256 | 10.0 | 39.1 | 25.6 |" in text


def test_what_a_host_weighs_is_counted() -> None:
    case = population.CASES["mlp"]
    hosts = population.build(case, 2, "vmap", torch.device("cpu"))
    hosts.germinate(population.mixed(hosts), torch.zeros(2, hosts.host.slots, dtype=torch.bool))
    widths = {name: store.param.shape[1] for name, store in hosts.snapshot().stores.items()}
    assert scaling.parameter_bytes(hosts) >= 4 * 2 * 2 * sum(widths.values())
    kept = scaling.kept_bytes(case)
    inputs = 4 * case.batch * 64
    assert inputs < kept < 100 * inputs


def test_every_part_of_training_that_is_timed_is_there() -> None:
    clock = pipeline.watched()
    clock.stop()
    assert clock.seconds == {}


def test_the_runs_that_are_measured_have_params_that_are_allowed(tmp_path: Path) -> None:
    for changes in (pipeline.ONE_CORE, pipeline.SHORT, outage.SMALL):
        params.load(ROOT / "params.yaml", changes)
    (tmp_path / "params.yaml").write_text("{}")
    for name in clean_runs.SETTINGS:
        params.load(tmp_path / "params.yaml", clean_runs.settings(name, 1), whole=False)


def test_the_page_tells_what_is_around_the_hosts() -> None:
    run = {
        "early_seconds": 0.1,
        "late_seconds": 0.11,
        "megabytes": [800.0, 801.0, 801.0, 801.0, 801.0],
        "audit_seconds": 2,
        "publish_seconds": 1.25,
    }
    recording = {"hosts": 4096, "played": 64, "steps": 25, "collect_seconds": 100.0, "bytes": 1}
    found = {
        "provenance": {"date": "", "revision": "", "cores": 2, "threads": 1, "load": 0.1, "torch": ""},
        "shares": {"iterations": 2, "total_seconds": 20.0, "seconds": {"telemetry": 0.2, "hosts": 19.8}},
        "growth": [{"iterations": 1000, "mlflow_calls": 1020, **run}],
        "recording": {**recording, "record_seconds": 0.2, "live_audit_seconds": 0.1},
        "processes": {"1 × 2": 30.0, "2 × 1": 20.0},
        "commands": {"dvc repro": 1.5},
        "chain": {"the stages alone": 20.0, "dvc repro": 31.5},
        "revisions": {"shares": "abc"},
    }
    text = page.text(page.DETAILS, {"pipeline": found})
    for line in (
        "| hosts | 99.0 % |",
        "| 1,000 | 100.0 | 110.0 | 800, 801, 801, 801, 801 | 1,020 | 1.2 | 2.0 |",
        "| `dvc repro` | 1.50 |",
        "| `dvc repro` | 31.5 | +11.5 |",
        "an iteration of 4,096 hosts and 25 steps takes 0.20 s of the processor, 0.2 % of playing it (measured with 64",
    ):
        assert line in text
    assert "2 iterations, of which 1.0 % is not the hosts" in text
    assert "| 2 × 1 | 20.0 |" in text
    assert "Parts were measured at abc (shares)." in text


MEASURED = {"date": "", "revision": "", "cores": 2, "threads": 1, "load": 0.1, "torch": ""}


def test_the_page_tells_what_checkpoints_cost() -> None:
    wall, cpu = ({"save": 1.0, "telemetry": 0.5, "chain": 0.3, "times": 0.2}, {"save": 0.2, "telemetry": 0.1})
    found = {"provenance": MEASURED, "iterations": 3, "checkpoint_bytes": 4_600_000, "wall": wall}
    found |= {"cpu": {**cpu, "chain": 0.1, "times": 0.0}, "wall_seconds": 100.0, "cpu_seconds": 80.0}
    text = page.text(page.DETAILS, {"checkpointing": found | {"wall_share": 0.02, "cpu_share": 0.005}})
    assert "3 iterations of the default run in one process, 4.6 MB each" in text
    assert "| state and manifest, synced | 1.00 % | 0.25 % |" in text and "| all | 2.00 % | 0.50 % |" in text


def test_the_checkpoint_meter_counts_nothing_twice_and_leaves_all_as_it_was() -> None:
    """A save writes a checkpoint: the seconds of both are kept, and one of them is added up."""
    before = {name: getattr(owner, method) for name, (owner, method) in checkpointing.WATCHED.items()}
    with checkpointing.Meter() as meter:
        assert all(getattr(*place) is not before[name] for name, place in checkpointing.WATCHED.items())
        meter.timed("save", lambda: meter.timed("write", lambda: time.sleep(0.01))())()
    assert {name: getattr(*place) for name, place in checkpointing.WATCHED.items()} == before
    assert meter.wall["save"] >= meter.wall["write"] >= 0.01 and meter.calls["save"] == meter.calls["write"] == 1
    assert "write" not in checkpointing.APART and set(checkpointing.APART) < set(checkpointing.WATCHED)


def test_the_page_tells_how_much_slower_a_run_is_without_mlflow() -> None:
    runs = {"none": {"rest": {"wall": 60.0}}, "dead port, a third": {"slower": {"wall": 0.061, "cpu": -0.001}}}
    found = {"provenance": MEASURED, "iterations": 60, "runs": runs, "same_models": True}
    text = page.text(page.DETAILS, {"outage": found})
    assert "60 s without MLflow" in text and "The weights are the same in all." in text
    assert "| dead port, a third | +6.1 % | -0.1 % |" in text and "| none |" not in text


def test_hosts_can_be_measured_where_nothing_can_be_drawn() -> None:
    code = "import sys; sys.modules['matplotlib'] = None; import benchmarks.population, benchmarks.host_profile"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
