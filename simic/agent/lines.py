"""How training goes, in lines of text."""

import time
from collections import deque
from collections.abc import Callable

from simic.agent.agent import IterationReport


def about_twenty(updates: int, say: Callable[[str], None]) -> Callable[[IterationReport], None]:
    """About so many lines of a run of so many updates: its steps, their speed, the mean return of the last episodes."""
    started, last = time.perf_counter(), deque[float](maxlen=100)

    def told(report: IterationReport) -> None:
        last.extend(report.returns)
        if report.iteration % max(1, updates // 20) == 0:
            mean = f"{sum(last) / len(last):8.1f}" if last else "       –"
            speed = report.env_steps / (time.perf_counter() - started)
            metrics = report.metrics
            say(
                f"{report.env_steps:>9} steps  {speed:7.0f}/s  return {mean}  "
                f"entropy {metrics.entropy:.2f}  kl {metrics.approx_kl:.4f}"
            )

    return told
