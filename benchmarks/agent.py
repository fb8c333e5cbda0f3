"""The agent beside sb3 PPO, sb3-contrib RecurrentPPO and MaskablePPO, every one tuned with the same grid.

    python -m benchmarks.agent run [--seeds 10] [--jobs 2]   # goes on where it was
    python -m benchmarks.agent report                        # JSON, plot, docs/benchmarks.md

Every run (task, algorithm, setting, rng seed) is a file under --work; what exists is not run again. First two tuning
seeds for each setting of the grid, then the rng seeds 1, 2, … with the setting of the best mean final return. Needs the
extra: pip install -e '.[bench]'.
"""

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

import simic
from benchmarks import page
from benchmarks.agent_tasks import (
    ENVS,
    EPISODES,
    GRID,
    MINIBATCHES,
    ROLLOUT,
    SHARED,
    TASKS,
    UNITS,
    Task,
)
from simic import durable
from simic.agent.agent import Agent, IterationReport, settings, sizes

# No seed is both tuned on and reported.
TUNING_SEEDS = (1001, 1002)
WORK = Path(".simic/benchmarks/agent")
RESULTS = page.RESULTS / "agent.json"
# Their versions decide what a peer computes.
PEERS = ("stable-baselines3", "sb3-contrib", "gymnasium", "torch")
# Episodes whose mean return is looked at.
WINDOW = 20


# --- one training ---


@dataclass
class Cell:
    """Result of one run. ``curve`` holds environment steps and the mean return of the last 20 episodes then."""

    task: str
    algorithm: str
    config: dict[str, Any]
    rng_seed: int
    steps: int
    returns: list[float] = field(default_factory=list)  # of greedy episodes after training
    curve: list[tuple[int, float]] = field(default_factory=list)
    steps_to_solve: int | None = None
    seconds: float = 0.0  # training alone

    def note(self, steps: int, returns: list[float]) -> None:
        """Record a finished rollout; ``returns`` are those of all episodes so far."""
        # A mean of fewer episodes would call a lucky start solved.
        if len(returns) >= WINDOW:
            mean = float(np.mean(returns[-WINDOW:]))
            self.curve.append((steps, round(mean, 3)))
            if self.steps_to_solve is None and mean >= TASKS[self.task].solved:
                self.steps_to_solve = steps


@cache
def code(algorithm: str) -> str:
    """Identify the code of a run: by the hash of our agent and its tasks, or by the versions of the peers."""
    if not algorithm.startswith("simic"):
        # Peers are not ours to hash: versions name their code.
        return " ".join(f"{name} {version(name)}" for name in PEERS)
    package = Path(simic.__file__).parent
    script = Path(__file__)
    files = [*sorted((package / "agent").rglob("*.py")), script, script.with_name("agent_tasks.py")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def whole_steps(task: str) -> int:
    """Round the steps of a task up to whole rollouts, in which everybody trains."""
    return -(-TASKS[task].steps // (ENVS * ROLLOUT)) * ENVS * ROLLOUT


def ours(cell: Cell, task: Task) -> None:
    """Train and play simic's agent; what the shared settings leave open is as in its defaults, as with the peers."""
    # Networks of the same sizes as the peers'.
    core = "lstm" if "LSTM" in cell.algorithm else "none"
    policy = sizes(encoder_units=UNITS, core=core, core_units=UNITS, head_units=UNITS)
    # Our value loss is ½ (V − R)², theirs is (V − R)².
    shared = SHARED | {"value_coef": 2 * SHARED["value_coef"]}
    ppo = settings(
        minibatches=MINIBATCHES, entropy_coef=0.0, entropy_coef_final=0.0, **shared, **cell.config
    )
    agent = Agent(
        task.make, rng_seed=cell.rng_seed, envs=ENVS, rollout_steps=ROLLOUT, policy=policy, ppo=ppo
    )
    # Of all episodes, since the window reaches back over rollouts.
    returns: list[float] = []

    def note(progress: IterationReport) -> None:
        returns.extend(progress.returns)
        cell.note(progress.env_steps, returns)

    # Playing after training is not timed.
    started = time.perf_counter()
    agent.train(cell.steps, note)
    cell.seconds = time.perf_counter() - started
    cell.returns = agent.evaluate(EPISODES)


def peer(cell: Cell, task: Task) -> None:
    """Train and play Stable-Baselines3 or its contributions, with VecNormalize as its documentation advises."""
    # Here, so that the report can be written without the extra.
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    class Watch(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[float] = []

        def _on_step(self) -> bool:
            # Put there by Monitor, which make_vec_env adds.
            self.found += [
                info["episode"]["r"] for info in self.locals["infos"] if "episode" in info
            ]
            return True

        def _on_rollout_end(self) -> None:
            cell.note(self.num_timesteps, self.found)

    # Environment k of a run is seeded rng_seed + k: runs share starts of first episodes, not how these go on.
    env = VecNormalize(make_vec_env(task.make, ENVS, seed=cell.rng_seed), gamma=SHARED["gamma"])
    model, evaluate = build(cell, env)
    started = time.perf_counter()
    model.learn(cell.steps, callback=Watch())
    cell.seconds = time.perf_counter() - started
    # Play with the scales of training, in episodes that training did not have.
    fresh = VecNormalize(
        make_vec_env(task.make, ENVS, seed=cell.rng_seed + 10_000),
        training=False,
        norm_reward=False,
    )
    fresh.obs_rms = env.obs_rms
    returns, _ = evaluate(model, fresh, EPISODES, deterministic=True, return_episode_rewards=True)
    cell.returns = [float(value) for value in returns]


def build(cell: Cell, env: Any) -> tuple[Any, Callable]:
    """Build the peer's model with the settings that everybody has, and find what evaluates it."""
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    # Each peer is the variant of PPO for its task.
    layers = {"net_arch": [UNITS, UNITS]}
    recurrent = {"net_arch": [UNITS], "lstm_hidden_size": UNITS}
    kind, policy, shape, evaluate = {
        "sb3 PPO": (PPO, "MlpPolicy", layers, evaluate_policy),
        "sb3-contrib RecurrentPPO": (RecurrentPPO, "MlpLstmPolicy", recurrent, evaluate_policy),
        "sb3-contrib MaskablePPO": (MaskablePPO, "MlpPolicy", layers, evaluate_masked),
    }[cell.algorithm]
    # The same settings under the peers' names.
    peer_names = {"epochs": "n_epochs", "value_coef": "vf_coef"}
    shared = {peer_names.get(name, name): value for name, value in (SHARED | cell.config).items()}
    # Peers take the size of a minibatch, ours their number.
    batch = ENVS * ROLLOUT // MINIBATCHES
    settings: dict[str, Any] = {
        "n_steps": ROLLOUT,
        "batch_size": batch,
        "ent_coef": 0.0,
        "device": "cpu",
    }
    return kind(
        policy, env, seed=cell.rng_seed, policy_kwargs=shape, **shared, **settings
    ), evaluate


# --- all trainings ---


@dataclass(frozen=True)
class Job:
    """A run to be made, and the folder of its result."""

    task: str
    algorithm: str
    config: dict[str, Any]
    rng_seed: int
    work: Path

    @property
    def path(self) -> Path:
        # The name says what is looked for; with which code it was run stands inside.
        name = "-".join(str(value) for value in self.config.values())
        folder = self.work / self.task.replace(" ", "_") / self.algorithm.replace(" ", "_")
        return folder / f"{name}-{self.rng_seed}.json"

    def cell(self) -> dict[str, Any] | None:
        """Read its result; None where it was not run, or with other code or for another number of steps."""
        # Missing and outdated are one: both are run.
        cell = json.loads(self.path.read_bytes()) if self.path.exists() else {}
        expected = code(self.algorithm), whole_steps(self.task)
        return cell if (cell.get("code"), cell.get("steps")) == expected else None


def execute(job: Job) -> str:
    """Run a cell on one thread, write its result, and describe it in a line."""
    # Several runs share the machine, and each would take all cores.
    torch.set_num_threads(1)
    cell = Cell(job.task, job.algorithm, job.config, job.rng_seed, whole_steps(job.task))
    # Speeds can be compared only beside the load at which they were measured.
    load = os.getloadavg()[0]
    play = ours if job.algorithm.startswith("simic") else peer
    play(cell, TASKS[job.task])
    row = asdict(cell) | {
        "steps_per_second": cell.steps / cell.seconds,
        "load": load,
        "code": code(job.algorithm),
    }
    job.path.parent.mkdir(parents=True, exist_ok=True)
    durable.replace_file(job.path, (json.dumps(row) + "\n").encode())
    mean = np.mean(cell.returns)
    return f"{job.path.relative_to(job.work)}: return {mean:.1f} after {cell.steps} steps, {cell.seconds:.0f} s"


def run(jobs: list[Job], processes: int) -> None:
    """Run the jobs without a result, several at a time."""
    # A fresh process for each: what one leaves in memory would slow the next.
    missing = [job for job in jobs if job.cell() is None]
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        for number, line in enumerate(pool.imap_unordered(execute, missing, chunksize=1), 1):
            print(f"{number}/{len(missing)} {line}", flush=True)


def tuning(task: str, algorithm: str, work: Path) -> list[Job]:
    """List the jobs that find a setting: the whole grid, on the seeds for tuning.

    Args:
        task: name of the task.
        algorithm: who learns.
        work: folder of results.
    """
    return [Job(task, algorithm, config, seed, work) for config in GRID for seed in TUNING_SEEDS]


def tuned(task: str, algorithm: str, work: Path) -> dict[str, Any] | None:
    """Choose the setting with the best mean final return over the tuning seeds, of equals the first.

    Args:
        task: name of the task.
        algorithm: who learns.
        work: folder of results.

    Returns:
        The setting; None before all have been tried.
    """
    cells = [job.cell() for job in tuning(task, algorithm, work)]
    finals = [float(np.mean(cell["returns"])) for cell in cells if cell is not None]
    # Before the whole grid was played the first of it would win.
    if len(finals) < len(cells):
        return None
    return GRID[int(np.reshape(finals, (len(GRID), -1)).mean(axis=1).argmax())]


def evaluation(task: str, algorithm: str, seeds: int, work: Path) -> list[Job]:
    """List the jobs of the chosen setting; none before it is known.

    Args:
        task: name of the task.
        algorithm: who learns.
        seeds: how many trainings.
        work: folder of results.
    """
    config = tuned(task, algorithm, work)
    return (
        []
        if config is None
        else [Job(task, algorithm, config, seed, work) for seed in range(1, seeds + 1)]
    )


# --- the report ---


def summary(work: Path) -> dict[str, Any]:
    """Summarise what is finished: by task and algorithm, and the comparisons that both sides are there for."""
    report: dict[str, Any] = {"envs": ENVS, "rollout": ROLLOUT, "grid": GRID, "tasks": {}}
    for name, task in TASKS.items():
        rows: dict[str, Any] = {}
        for algorithm in task.rivals:
            cells = [
                cell for job in evaluation(name, algorithm, 1000, work) if (cell := job.cell())
            ]
            if cells:
                rows[algorithm] = _row(cells)
        pairs = [_compared(task, rows)] if set(task.rivals) <= rows.keys() else []
        if rows:
            report["tasks"][name] = {
                "solved": task.solved,
                "margin": task.margin,
                "rows": rows,
                "pairs": pairs,
            }
    return report


def _row(cells: list[dict[str, Any]]) -> dict[str, Any]:
    finals = [float(np.mean(cell["returns"])) for cell in cells]
    solved = [cell["steps_to_solve"] for cell in cells]
    # Runs that never got there count as later than all others.
    median = float(np.median([np.inf if steps is None else steps for steps in solved]))
    # Curves begin when twenty episodes have ended, so they are lined up at their ends.
    shortest = min(len(cell["curve"]) for cell in cells)
    grid = np.array([[value for _, value in cell["curve"]][-shortest:] for cell in cells])
    return {
        "config": cells[0]["config"],
        "rng_seeds": [cell["rng_seed"] for cell in cells],
        "final_returns": finals,
        "mean": float(np.mean(finals)),
        "solved_runs": sum(steps is not None for steps in solved),
        "median_steps_to_solve": median if np.isfinite(median) else None,
        "steps_per_second": float(np.median([cell["steps_per_second"] for cell in cells])),
        "curve": {
            "steps": [steps for steps, _ in cells[0]["curve"]][-shortest:],
            "mean": grid.mean(axis=0).round(2).tolist(),
            "low": grid.min(axis=0).tolist(),
            "high": grid.max(axis=0).tolist(),
        },
    }


def _compared(task: Task, rows: dict[str, Any]) -> dict[str, Any]:
    """Compare the means of both rivals with a 95 % interval (Welch 1947): their spreads may differ."""
    # A single training has no spread, so nothing is claimed.
    row: dict[str, Any] = dict(zip(("ours", "theirs"), task.rivals, strict=True))
    our_returns, peer_returns = (rows[name]["final_returns"] for name in task.rivals)
    if min(len(our_returns), len(peer_returns)) < 2:
        return row
    interval = stats.ttest_ind(our_returns, peer_returns, equal_var=False).confidence_interval(0.95)
    row |= {
        "difference": float(np.mean(our_returns) - np.mean(peer_returns)),
        "low": interval.low,
        "high": interval.high,
    }
    return row | {"not_behind": bool(interval.low > -task.margin)}


def main() -> None:
    parser = page.parser(__doc__)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--work", type=Path, default=WORK)
    arguments = parser.parse_args()
    if arguments.what == "run":
        # Settings are chosen for everybody before anybody is evaluated.
        pairs = [(name, algorithm) for name, task in TASKS.items() for algorithm in task.rivals]
        run([job for pair in pairs for job in tuning(*pair, arguments.work)], arguments.jobs)
        run(
            [job for pair in pairs for job in evaluation(*pair, arguments.seeds, arguments.work)],
            arguments.jobs,
        )
    else:
        page.write_result(RESULTS, summary(arguments.work))
        page.main()


if __name__ == "__main__":
    main()
