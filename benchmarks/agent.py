"""The agent beside sb3 PPO, sb3-contrib RecurrentPPO and MaskablePPO, every one tuned with the same grid.

    python -m benchmarks.agent run [--jobs 2] [--only sb3]   # goes on where it was
    python -m benchmarks.agent report                        # JSON, plot, docs/benchmarks.md

Every run (task, algorithm, setting, rng seed) is a file under --work; what exists is not run again. First two tuning
seeds for each setting of the grid and half the steps, then the rng seeds 1, 2, … with the setting of the best mean
final return. --only runs what has that text in its task or algorithm. Needs the extra: pip install -e '.[bench]'.
"""

import hashlib
import inspect
import json
import math
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from scipy import stats
from torch import nn

import simic
from benchmarks import page
from benchmarks.agent_tasks import EPISODES, GRID, SHARED, TASKS, UNITS, Task
from benchmarks.memory import Corridor
from examples.extensions.hybrid import Platform
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
    # With the environments, some of which are defined elsewhere.
    package = Path(simic.__file__).parent
    scripts = [inspect.getfile(part) for part in (main, Task, Corridor, Platform)]
    files = [*sorted((package / "agent").rglob("*.py")), *map(Path, scripts)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def whole_steps(task: str, rng_seed: int) -> int:
    """Round the steps of a task up to whole rollouts, in which everybody trains; to be tuned half of them do."""
    steps = TASKS[task].steps // (2 if rng_seed in TUNING_SEEDS else 1)
    rollout = TASKS[task].rollout
    return -(-steps // rollout) * rollout


def ours(cell: Cell, task: Task) -> None:
    """Train and play simic's agent; what the shared settings leave open is as in its defaults, as with the peers."""
    # Networks of the same sizes as the peers'.
    core = cell.algorithm.removeprefix("simic").strip().lower() or "none"
    policy = sizes(encoder_units=UNITS, core=core, core_units=UNITS, head_units=UNITS)
    shared = task.shared | cell.config
    rollout = {name: shared.pop(name) for name in ("envs", "rollout_steps")}
    # Our value loss is ½ (V − R)², theirs is (V − R)².
    shared["value_coef"] *= 2
    ppo = settings(entropy_coef_final=shared["entropy_coef"], **shared)
    make = partial(task.env, cell.algorithm)
    agent = Agent(make, rng_seed=cell.rng_seed, policy=policy, ppo=ppo, **rollout)
    # Of all episodes, since the window reaches back over rollouts.
    returns: list[float] = []

    def note(progress: IterationReport) -> None:
        returns.extend(progress.returns)
        cell.note(progress.env_steps, returns)

    # Playing after training is not timed.
    started = time.process_time()
    agent.train(cell.steps, note)
    cell.seconds = time.process_time() - started
    cell.returns = agent.evaluate(EPISODES)


def peer(cell: Cell, task: Task) -> None:
    """Train and play Stable-Baselines3 or its contributions, with VecNormalize as its documentation advises."""
    # Here, so that the report can be written without the extra.
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.preprocessing import is_image_space
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

    def normalized(seed: int, **options: bool) -> VecNormalize:
        make = partial(task.env, cell.algorithm)
        env = make_vec_env(make, task.shared["envs"], seed=seed)
        # Scales are for numbers: not for a picture alone, nor for categories beside numbers.
        space = env.observation_space
        numbers = None
        if isinstance(space, Dict):
            numbers = [key for key, part in space.items() if isinstance(part, Box)]
        return VecNormalize(
            env,
            gamma=task.shared["gamma"],
            norm_obs=not is_image_space(space),
            norm_obs_keys=numbers,
            **options,
        )

    # Environment k of a run is seeded rng_seed + k: runs share starts of first episodes, not how these go on.
    env = normalized(cell.rng_seed)
    model, evaluate = build(cell, task, env)
    started = time.process_time()
    model.learn(cell.steps, callback=Watch())
    cell.seconds = time.process_time() - started
    # Play with the scales of training, in episodes that training did not have.
    fresh = normalized(cell.rng_seed + 10_000, training=False, norm_reward=False)
    if fresh.norm_obs:
        fresh.obs_rms = env.obs_rms
    returns, _ = evaluate(model, fresh, EPISODES, deterministic=True, return_episode_rewards=True)
    cell.returns = [float(value) for value in returns]


def build(cell: Cell, task: Task, env: Any) -> tuple[Any, Callable]:
    """Build the peer's model with the settings that everybody has, and find what evaluates it."""
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
    from stable_baselines3 import PPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.preprocessing import is_image_space

    # Each peer is the variant of PPO for its task, and its policy the one for the observations.
    kind, evaluate = PPO, evaluate_policy
    policy, shape = "MlpPolicy", {"net_arch": [UNITS, UNITS]}
    if "Recurrent" in cell.algorithm:
        kind, policy = RecurrentPPO, "MlpLstmPolicy"
        shape = {"net_arch": [UNITS], "lstm_hidden_size": UNITS}
    elif "Maskable" in cell.algorithm:
        kind, evaluate = MaskablePPO, evaluate_masked
    elif isinstance(env.observation_space, Dict):
        policy = "MultiInputPolicy"
    elif is_image_space(env.observation_space):
        policy, shape = "CnnPolicy", {"features_extractor_class": grid_encoder()}
    # The same settings under the peers' names; they take the size of a minibatch, ours their number.
    peer_names = {
        "rollout_steps": "n_steps",
        "epochs": "n_epochs",
        "value_coef": "vf_coef",
        "entropy_coef": "ent_coef",
    }
    shared = task.shared | cell.config
    shared = {peer_names.get(name, name): value for name, value in shared.items()}
    shared["batch_size"] = task.rollout // shared.pop("minibatches")
    del shared["envs"]
    model = kind(policy, env, seed=cell.rng_seed, policy_kwargs=shape, device="cpu", **shared)
    return model, evaluate


def grid_encoder() -> type:
    """Define the network that MiniGrid's documentation gives Stable-Baselines3, whose own is for larger pictures."""
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class GridEncoder(BaseFeaturesExtractor):
        def __init__(self, observation_space: Box) -> None:
            super().__init__(observation_space, features_dim=128)
            channels, *sides = observation_space.shape
            # Channels come first, where Stable-Baselines3 moves them.
            layers: list[nn.Module] = []
            for before, after in pairwise((channels, 16, 32, 64)):
                layers += [nn.Conv2d(before, after, 2), nn.ReLU()]
            # Each convolution takes a row and a column.
            pixels = math.prod(side - 3 for side in sides)
            self.layers = nn.Sequential(
                *layers, nn.Flatten(), nn.Linear(64 * pixels, 128), nn.ReLU()
            )

        def forward(self, pictures: torch.Tensor) -> torch.Tensor:
            return self.layers(pictures)

    return GridEncoder


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
        # The name says what is looked for; with which code and settings it was run stands inside.
        name = "-".join(str(value) for value in self.config.values())
        folder = self.work / self.task.replace(" ", "_") / self.algorithm.replace(" ", "_")
        return folder / f"{name}-{self.rng_seed}.json"

    def cell(self) -> dict[str, Any] | None:
        """Read its result; None where it was not run, or with other code or for another number of steps."""
        # Missing and outdated are one: both are run. The code of a peer is its version, so settings are compared too.
        cell = json.loads(self.path.read_bytes()) if self.path.exists() else {}
        expected = {
            "code": code(self.algorithm),
            "steps": whole_steps(self.task, self.rng_seed),
            "shared": TASKS[self.task].shared,
        }
        return cell if expected.items() <= cell.items() else None


def execute(job: Job) -> str:
    """Run a cell on one thread, write its result, and describe it in a line."""
    # Several runs share the machine, and each would take all cores.
    torch.set_num_threads(1)
    steps = whole_steps(job.task, job.rng_seed)
    cell = Cell(job.task, job.algorithm, job.config, job.rng_seed, steps)
    # Speeds can be compared only beside the load at which they were measured.
    load = os.getloadavg()[0]
    play = ours if job.algorithm.startswith("simic") else peer
    play(cell, TASKS[job.task])
    row = asdict(cell) | {
        "steps_per_second": cell.steps / cell.seconds,
        "load": load,
        "code": code(job.algorithm),
        "shared": TASKS[job.task].shared,
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


def evaluation(task: str, algorithm: str, work: Path) -> list[Job]:
    """List the jobs of the chosen setting; none before it is known.

    Args:
        task: name of the task.
        algorithm: who learns.
        work: folder of results.
    """
    config = tuned(task, algorithm, work)
    if config is None:
        return []
    return [Job(task, algorithm, config, seed, work) for seed in range(1, TASKS[task].seeds + 1)]


# --- the report ---


def summary(work: Path) -> dict[str, Any]:
    """Summarise what is finished: by task and algorithm, and the comparisons that both sides are there for."""
    report: dict[str, Any] = {"shared": SHARED, "grid": GRID, "tasks": {}}
    for name, task in TASKS.items():
        rows: dict[str, Any] = {}
        for algorithm in task.rivals:
            cells = [cell for job in evaluation(name, algorithm, work) if (cell := job.cell())]
            if cells:
                rows[algorithm] = _row(cells)
        ours, *peers = task.rivals
        pairs = [_compared(task, rows, ours, peer) for peer in peers if {ours, peer} <= rows.keys()]
        if rows:
            report["tasks"][name] = {
                "solved": task.solved,
                "margin": task.margin,
                "changes": dict(task.changes),
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


def _compared(task: Task, rows: dict[str, Any], ours: str, theirs: str) -> dict[str, Any]:
    """Compare the means of two rivals with a 95 % interval (Welch 1947): their spreads may differ."""
    # A single training has no spread, so nothing is claimed.
    row: dict[str, Any] = {"ours": ours, "theirs": theirs}
    our_returns, peer_returns = (rows[name]["final_returns"] for name in (ours, theirs))
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
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--work", type=Path, default=WORK)
    arguments = parser.parse_args()
    if arguments.what == "run":
        # Settings are chosen for everybody before anybody is evaluated.
        pairs = [
            (name, algorithm)
            for name, task in TASKS.items()
            for algorithm in task.rivals
            if arguments.only in f"{name}, {algorithm}"
        ]
        run([job for pair in pairs for job in tuning(*pair, arguments.work)], arguments.jobs)
        jobs = [job for pair in pairs for job in evaluation(*pair, arguments.work)]
        # In turns: what else the machine does then slows all rivals of a task alike.
        order = list(TASKS)
        jobs.sort(key=lambda job: (order.index(job.task), job.rng_seed))
        run(jobs, arguments.jobs)
    else:
        page.write_result(RESULTS, summary(arguments.work))
        page.main()


if __name__ == "__main__":
    main()
