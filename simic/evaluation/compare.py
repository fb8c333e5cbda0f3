"""Compare a controller's networks with the host alone, the best common schedule and a random search.

Every schedule is trained as often as the controller grew a network, each time on a host of its own: a search then
chooses among lucky and unlucky hosts just as whoever keeps the best of several grown networks does. What is chosen is
chosen by validation; the test split scores.
"""

from collections.abc import Callable

import numpy as np
import torch

from simic.data.batches import Dataset
from simic.envs.growth_env import GrowthEnv
from simic.envs.rewards import score
from simic.evaluation.headroom import possible_schedules
from simic.evaluation.page import markdown
from simic.evaluation.result import Frozen
from simic.evaluation.schedules import Schedule, Table, grids
from simic.evaluation.scoring import Hosts, committed
from simic.evaluation.search import random_search
from simic.evaluation.statistics import Values
from simic.params import Params

SEARCHES = (1, 2, 4, 8)  # trainings


class ComparedRow(Frozen):
    """One way to a network: the host trainings it costs, and the mean test score of its networks, in points.

    The score is a mean over independent networks, from ``hosts`` trained hosts in all; its standard error is null for a
    single one.
    """

    name: str
    trainings: int
    score: float
    standard_error: float | None
    hosts: int
    params: float


class GrowthComparison(Frozen):
    """Content of compare.json."""

    price: float  # points a score loses for each time the host's own parameters that were added
    common: str | None  # the best common schedule of the tasks the controller was trained on; null: not known
    schedules: tuple[str, ...]  # what random search draws from
    rows: tuple[ComparedRow, ...]

    def table(self) -> str:
        """Return the rows as Markdown, in columns that also align as plain text."""
        cells = [("network", "host trainings", "test score", "standard error", "hosts", "parameters")]
        for row in self.rows:
            error = "–" if row.standard_error is None else f"{row.standard_error:.1f}"
            cells.append((row.name, f"{row.trainings}", f"{row.score:.1f}", error, f"{row.hosts}", f"{row.params:.0f}"))
        return markdown(cells)

    def page(self) -> str:
        """Return a section of the model card."""
        priced = f", less {self.price:g} points for each time the host's parameters were added" if self.price else ""
        return f"""## Beside other ways to a network
{self.table()}

Mean test accuracy{priced}, with its standard error over hosts.
Random search draws from {len(self.schedules)} schedules, each trained on hosts of its own, and keeps the best by
validation, as is done with the controller's networks."""


def compare(
    params: Params,
    env: GrowthEnv,
    test: Dataset,
    written: int,
    common: str | None,
    told: Callable[[int, int], None],
) -> GrowthComparison:
    """Compare the hosts of ``env`` at the end of the controller's episode, of which ``written`` is kept; ``told`` hears
    how many of how many host trainings are done.
    """
    hosts, names = env.num_envs, [item.name for item in env.blueprints]
    schedules = possible_schedules(params, env)
    known = [] if common is None else [Schedule.named(common, names, env.host.slots)]
    played = list(dict.fromkeys([*schedules, *known]))
    ids = torch.arange(hosts, hosts * (len(played) + 1)).view(hosts, -1)  # after those of the controller
    hosts_of_schedules = Hosts(torch.zeros_like(ids[:, 0]), ids, env.iteration)
    splits, epochs = (env.training_data, env.validation_data), params.train.longest_episode
    [reached] = grids(params, splits, test, hosts_of_schedules, played, env.device, [epochs], told).values()
    price, bare = params.train.price, env.host.params

    def scored(accuracy: Table, size: Table) -> Table:
        return score(accuracy, size - bare, bare, price)

    val, tested = (scored(each, reached.params) for each in (reached.val_accuracy_pct, reached.test_accuracy_pct))
    rows = [_row("host alone", 1, tested[:, 0], reached.params[:, 0])]
    for schedule in known:
        column = played.index(schedule)
        rows.append(_row(f"common schedule: {common}", 1, tested[:, column], reached.params[:, column]))
    val, tested, sizes = (table[:, : len(schedules)] for table in (val, tested, reached.params))
    best, of_best = random_search(val, tested), random_search(val, sizes)
    for k in SEARCHES:
        if k <= len(schedules):
            rows.append(_row(f"random search, best of {k}", k, best[:, k - 1], of_best[:, k - 1], tested.size))
    _, accuracy, size, _ = committed(env, test).numpy()
    own, kept = scored(accuracy, size), slice(written, written + 1)
    rows.append(_row("controller, one network", 1, own, size))
    rows.append(_row(f"controller, best of {hosts}: written", hosts, own[kept], size[kept], hosts))
    return GrowthComparison(
        price=price,
        common=common,
        schedules=tuple(schedule.name(names) for schedule in schedules),
        rows=tuple(rows),
    )


def _row(name: str, trainings: int, scores: Values, params: Values, hosts: int | None = None) -> ComparedRow:
    """Return the row of independent repeats; ``hosts`` where they are not one each."""
    repeats = len(scores)
    error = float(scores.std(ddof=1) / np.sqrt(repeats)) if repeats > 1 else None
    return ComparedRow(
        name=name,
        trainings=trainings,
        score=round(float(scores.mean()), 4),
        standard_error=None if error is None else round(error, 4),
        hosts=repeats if hosts is None else hosts,
        params=round(float(params.mean()), 1),
    )
