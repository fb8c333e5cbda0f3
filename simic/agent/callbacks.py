"""What watches an agent while it trains, and may end it: evaluation that keeps the best, a writer, a bar.

A callback is told of every step of the environments, of every update, and of the end. Nothing that it does changes what
is learned: evaluation plays in environments of its own, with draws of its own.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Protocol, SupportsIndex

from simic import durable
from simic.agent.metrics import UpdateMetrics, numbers
from simic.agent.rollout import StepRecord
from simic.errors import SimicError, printable
from simic.validation_messages import whole_number

RETURN = "rollout/ep_rew_mean"  # as Stable-Baselines3 names it
EVALUATED = "eval/mean_reward"


@dataclass(frozen=True)
class IterationReport:
    """The result of one iteration: environment steps so far, returns of the episodes that ended in it, the update."""

    iteration: int
    env_steps: int
    returns: list[float]
    metrics: UpdateMetrics


class Trainee(Protocol):
    """What callbacks know of an agent."""

    @property
    def env_steps(self) -> int: ...

    def evaluate(self, episodes: SupportsIndex = 24, greedy: bool = True) -> list[float]: ...

    def save(self, path: str | Path) -> None: ...


class Callback:
    """Watch a training; a subclass overrides what it wants to hear. ``False`` ends training after the update that is
    under way.
    """

    def on_start(self, agent: Trainee, steps: int) -> None:
        """Hear that ``train`` begins, and how many steps it was asked for, in whole updates."""

    def on_step(self, agent: Trainee, step: StepRecord) -> bool | None:
        """Hear of one step of all environments."""

    def on_update(self, agent: Trainee, report: IterationReport) -> bool | None:
        """Hear of an update."""

    def on_end(self, agent: Trainee, failed: bool) -> None:
        """Hear that ``train`` ends, and whether by an error."""


class Watching:
    """Tell several callbacks, and note whether one of them has had enough.

    Args:
        agent: What trains.
        callbacks: In the order in which they are told; a function hears of updates alone.
    """

    def __init__(
        self, agent: Trainee, callbacks: Sequence[Callback | Callable[[IterationReport], Any]]
    ) -> None:
        self.agent = agent
        for callback in callbacks:
            if isinstance(callback, type) or not isinstance(callback, Callback | Callable):
                raise SimicError(f"callback {callback!r}: must be a Callback, or a function")
        self.callbacks = [
            callback if isinstance(callback, Callback) else _Function(callback)
            for callback in callbacks
        ]
        self.is_over = False

    @contextmanager
    def told(self, steps: int) -> Iterator[None]:
        """Tell of the start and of the end, whatever happens between."""
        failed = True
        begun: list[Callback] = []
        try:
            for callback in self.callbacks:
                callback.on_start(self.agent, steps)
                begun.append(callback)
            yield
            failed = False
        finally:
            for callback in begun:
                callback.on_end(self.agent, failed)

    def on_step(self, step: StepRecord) -> None:
        for callback in self.callbacks:
            self._heard(callback.on_step(self.agent, step))

    def on_update(self, report: IterationReport) -> None:
        for callback in self.callbacks:
            self._heard(callback.on_update(self.agent, report))

    def _heard(self, answer: object) -> None:
        # None is the answer of whoever has no opinion.
        self.is_over = self.is_over or answer is False


class _Function(Callback):
    def __init__(self, function: Callable[[IterationReport], Any]) -> None:
        self.function = function

    def on_update(self, agent: Trainee, report: IterationReport) -> Any:
        return self.function(report)


def scalars(report: IterationReport) -> dict[str, float]:
    """Name the numbers of an update as Stable-Baselines3 does where it has them; returns only where episodes ended."""
    returns = report.returns
    mean = {RETURN: math.fsum(returns) / len(returns)} if returns else {}
    metrics = numbers(asdict(report.metrics), "train/")
    # NaN is a number that was not measured.
    return mean | {name: value for name, value in metrics.items() if not math.isnan(value)}


class PeriodicEvaluation(Callback):
    """Play greedy episodes now and then, keep the best agent, and stop when it is good enough or no longer improves.

    Args:
        every: Steps of training between two evaluations; one more comes with the last update.
        episodes: How many are played.
        best: A file that the agent with the highest mean return is saved to; None: nothing is saved.
        patience: Ends training after so many evaluations without a better one; None: never.
        target: Ends training at this mean return; None: never.
    """

    def __init__(
        self,
        every: SupportsIndex,
        episodes: SupportsIndex = 24,
        best: str | Path | None = None,
        patience: SupportsIndex | None = None,
        target: float | None = None,
    ) -> None:
        self.every = whole_number("every", every, 1)
        self.episodes = whole_number("episodes", episodes, 1)
        # Refused before hours of training.
        self.best = None if best is None else durable.file_path(best)
        self.patience = None if patience is None else whole_number("patience", patience, 1)
        if not isinstance(target, Real | None):
            raise SimicError(f"target = {target!r}: must be a number, or None")
        self.target = math.inf if target is None else target
        self.history: list[tuple[int, float]] = []  # steps, and the mean return
        self._due = 0

    @property
    def best_return(self) -> float:
        return max((mean for _, mean in self.history), default=-math.inf)

    def on_start(self, agent: Trainee, steps: int) -> None:
        self._due = agent.env_steps + self.every

    def on_update(self, agent: Trainee, report: IterationReport) -> bool | None:
        if report.env_steps < self._due:
            return None
        self._due = report.env_steps + self.every
        return self._evaluate(agent)

    def on_end(self, agent: Trainee, failed: bool) -> None:
        is_evaluated = bool(self.history) and self.history[-1][0] == agent.env_steps
        if not failed and not is_evaluated:
            self._evaluate(agent)

    def _evaluate(self, agent: Trainee) -> bool:
        """Evaluate, save the best, and tell whether to go on."""
        # In environments and with draws of its own: training goes on as without it.
        returns = agent.evaluate(self.episodes)
        mean = math.fsum(returns) / len(returns)
        # Better and not equal: of equal ones the earlier stays.
        if self.best is not None and mean > self.best_return:
            agent.save(self.best)
        self.history.append((agent.env_steps, mean))
        # How long ago the best one was.
        means = [mean for _, mean in self.history]
        since_best = len(means) - 1 - means.index(max(means))
        is_stale = self.patience is not None and since_best >= self.patience
        return not is_stale and mean < self.target


class Writer(Callback):
    """Hand the numbers of each update, and of evaluations, to whatever keeps them.

    Args:
        write: ``write(values, steps)`` keeps numbers by name, at so many steps.
        evaluation: Whose means are written too; it comes before the writer.
    """

    def __init__(
        self,
        write: Callable[[dict[str, float], int], Any],
        evaluation: PeriodicEvaluation | None = None,
    ) -> None:
        if not callable(write):
            raise SimicError(f"write = {write!r}: must be a function of values and steps")
        if not isinstance(evaluation, PeriodicEvaluation | None):
            raise SimicError(f"evaluation = {evaluation!r}: must be a PeriodicEvaluation, or None")
        self.write = write
        self.evaluation = evaluation
        self._written = 0

    def on_update(self, agent: Trainee, report: IterationReport) -> bool | None:
        self.write(scalars(report), report.env_steps)
        self._write_evaluations()

    def on_end(self, agent: Trainee, failed: bool) -> None:
        self._write_evaluations()

    def _write_evaluations(self) -> None:
        new = self.evaluation.history[self._written :] if self.evaluation is not None else []
        for steps, mean in new:
            self.write({EVALUATED: mean}, steps)
        self._written += len(new)


class ProgressBar(Callback):
    """Show in one line of the terminal how far training is, and the mean return of the last update."""

    def on_start(self, agent: Trainee, steps: int) -> None:
        self._end = agent.env_steps + steps

    def on_update(self, agent: Trainee, report: IterationReport) -> bool | None:
        mean = scalars(report).get(RETURN)
        text = "" if mean is None else f", return {mean:.2f}"
        line = f"{report.env_steps:,} of {self._end:,} steps{text}   "
        print("\r", printable(line), sep="", end="", flush=True)

    def on_end(self, agent: Trainee, failed: bool) -> None:
        print()
