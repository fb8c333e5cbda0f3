"""Run `simic watch`: look at the requests since the last look, and write down and show what is not as in training.

What a look found, and which rows it has read, is one line of an append-only journal. A watch that is started again, or
was killed, reads on where the last line ends, so that no look is counted twice and no row is looked at twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import TypeAdapter

from simic import durable
from simic.data.own import predict
from simic.evaluation.intervals import Interval, share_interval
from simic.serving import journal, request_rows, shifts
from simic.serving.champions import OpenNetwork
from simic.serving.journal import Entry
from simic.serving.request_rows import NotedRequests
from simic.serving.shifts import Shift

JOURNAL = "looks.jsonl"
PAGE = "watch.html"
# Rows of a look; fewer wait for more. Shifts of 0.1 in a column's index are seen in some hundreds of rows.
LEAST_ROWS = 200
# Newest labelled rows by which accuracy is judged, and the least.
NEWEST_LABELLED = 1000
LEAST_LABELLED = 50
CLASSES = "classes predicted"
ACCURACY = "accuracy"


class Accuracy(Entry):
    """Share of right answers among the newest labelled rows, beside what the test split promised."""

    rows: int
    # Labels that the network has no class for, which count as wrong answers.
    no_class: int
    measured: Interval
    promised: Interval
    p_value: float
    level: float

    @property
    def is_finding(self) -> bool:
        """Tell whether the promise is broken, and not by chance."""
        return self.p_value <= self.level


class Look(Entry):
    """One look at the requests of a model; ``number`` counts the looks at this model."""

    number: int
    model: str
    time: datetime
    rows: int
    # Files of the log that this look was the first to read.
    read: tuple[str, ...]
    columns: tuple[Shift, ...]
    predicted: dict[str, int]
    # Of the classes predicted, beside those of the first look.
    classes: Shift | None
    accuracy: Accuracy | None
    unreadable: tuple[str, ...]

    @property
    def compared(self) -> list[Shift]:
        """List the columns, and the classes predicted."""
        return [*self.columns, *([self.classes] if self.classes else [])]

    @property
    def findings(self) -> list[str]:
        """Name what is not as in training."""
        names = [column.name for column in self.compared if column.is_finding]
        return names + [ACCURACY] * (self.accuracy is not None and self.accuracy.is_finding)


class Alarm(Entry):
    """Say that the findings of a look have been passed on."""

    alarm_of: int
    model: str


@dataclass(frozen=True)
class Report:
    """Hold the last look at a model, whether it was taken now, and how many rows wait for the next."""

    look: Look | None
    is_new: bool
    waiting: int
    page: Path

    @property
    def lines(self) -> list[str]:
        """Write it for a terminal."""
        # Before the first look.
        if self.look is None:
            return [_waiting(self.waiting, "first")]
        look = self.look
        lines = [f"look     {look.number} at model {look.model}, {look.rows} rows"]
        if not self.is_new:
            lines.append(_waiting(self.waiting, "next"))
        lines += [
            f"shift    {column.name}: PSI {column.psi:.2f}, p {column.p_value:.1g} (needs {column.level:.1g})"
            for column in look.compared
            if column.is_finding
        ]
        if (accuracy := look.accuracy) is not None:
            measured = f"{_percent(accuracy.measured)} % of {accuracy.rows} rows"
            lines.append(f"accuracy {measured}, promised {_percent(accuracy.promised)} %")
            # A new class, or another way to write them.
            if accuracy.no_class:
                lines.append(f"labels   {accuracy.no_class} are no class of the network")
        lines.append(f"finding  {', '.join(look.findings) or 'none'}")
        return [*lines, f"page     {self.page}"]


def watch(network: OpenNetwork, requests: Path, out: Path, labels: Path | None = None) -> Report:
    """Look at the requests since the last look, if they are enough.

    Args:
        network: That answered them.
        requests: Folder of the request log.
        out: Folder of the journal and the page.
        labels: A table of the requests and their true classes, as far as they are known.

    Raises:
        SimicError: The log, the labels or the journal cannot be read.
        Held: Another process watches into the same folder.
    """
    with durable.locked(out / ".lock", "watches"):
        looks = [look for look in looks_in(out) if look.model == network.model.version]
        # The requests of this model that no look has read.
        log = NotedRequests.of(requests, {name for look in looks for name in look.read})
        rows = _of_model(log.rows, network)
        is_due = len(rows) >= LEAST_ROWS
        if is_due:
            answered = None
            if labels is not None and labels.exists():
                everything = _of_model(NotedRequests.of(requests).rows, network)
                answered = request_rows.labelled(everything, labels, network.model.terms)
            look = _look(network, looks, log, rows, answered)
            # Written down before anybody hears of it: whoever is killed meanwhile has looked, or has not.
            journal.append(out / JOURNAL, look)
            looks.append(look)
        # Also where nothing is new: a watch that was killed may not have come to it.
        if looks:
            _write_page(looks, network, out)
        return Report(looks[-1] if looks else None, is_due, 0 if is_due else len(rows), out / PAGE)


def _look(
    network: OpenNetwork,
    looks: Sequence[Look],
    log: NotedRequests,
    rows: pd.DataFrame,
    answered: pd.DataFrame | None,
) -> Look:
    """Look at rows, after earlier looks at the same model."""
    # How sure a finding of this look has to be.
    number = len(looks) + 1
    tests = len(network.model.columns) + 1 + (answered is not None)
    level = shifts.level_of(number, tests)
    predicted = predict.as_text(rows[request_rows.PREDICTED]).value_counts().to_dict()
    return Look(
        number=number,
        model=network.model.version,
        time=datetime.now(UTC),
        rows=len(rows),
        read=tuple(log.files),
        unreadable=log.unreadable,
        columns=tuple(_compare(network, rows, level)),
        predicted=predicted,
        classes=_compare_classes(looks[0].predicted, predicted, level) if looks else None,
        accuracy=None if answered is None else _judge(network, answered, level),
    )


def looks_in(out: Path) -> list[Look]:
    """Read all looks of a folder, at any model."""
    return [entry for entry in journal.read(out / JOURNAL, _ENTRIES) if isinstance(entry, Look)]


@contextmanager
def alarm(report: Report) -> Iterator[list[str]]:
    """Yield the findings of all looks at the model that nobody was told of; where the block ends well, they were.

    A process that is killed in between tells them again: to hear of a shift twice is better than never.
    """
    file = report.page.with_name(JOURNAL)
    entries = journal.read(file, _ENTRIES)
    # None before the first look; later ones may have found nothing.
    model = report.look and report.look.model
    untold = [
        look
        for look in entries
        if isinstance(look, Look)
        and look.model == model
        and look.findings
        and Alarm(alarm_of=look.number, model=look.model) not in entries
    ]
    yield [*dict.fromkeys(name for look in untold for name in look.findings)]
    for look in untold:
        journal.append(file, Alarm(alarm_of=look.number, model=look.model))


_ENTRIES = TypeAdapter(Look | Alarm)


def _of_model(rows: Any, network: OpenNetwork) -> pd.DataFrame:
    return rows[rows[request_rows.MODEL] == network.model.version].reset_index(drop=True)


def _compare(network: OpenNetwork, rows: pd.DataFrame, level: float) -> Iterator[Shift]:
    # In the numbers that the network sees.
    columns = network.model.columns
    described = [column.model_dump() for column in columns]
    sent = request_rows.features(rows, [column.name for column in columns])
    pairs = zip(
        predict.codes(network.reference, described).T, predict.codes(sent, described).T, strict=True
    )
    terms = zip(columns, network.model.terms.columns, pairs, strict=True)
    for column, term, (reference, window) in terms:
        if column.levels is None:
            yield shifts.of_numbers(column.name, term.quantiles, reference, window, level)
        else:
            yield shifts.of_levels(column.name, reference, window, level)


def _compare_classes(first: dict[str, int], now: dict[str, int], level: float) -> Shift:
    """Compare with the first look: a network answers the rows that it was trained on too well to compare with."""
    names = sorted(first.keys() | now.keys())
    table = np.array([[look.get(name, 0) for name in names] for look in (first, now)], float)
    return shifts.of_table(CLASSES, table, level)


def _judge(network: OpenNetwork, answered: pd.DataFrame, level: float) -> Accuracy | None:
    """Compare the newest answers with the test split, by Fisher's exact test of a lower share."""
    # The newest of all looks: labels of a few rows a look would never be enough.
    newest = answered.tail(NEWEST_LABELLED)
    rows = len(newest)
    if rows < LEAST_LABELLED:
        return None
    predicted = predict.as_text(newest[request_rows.PREDICTED])
    right = int((predicted == newest[request_rows.ANSWER]).sum())
    # So many right answers the test split had.
    promise = network.promise
    tested = promise["rows"]
    expected = round(promise["accuracy"] * tested)
    table = [[right, rows - right], [expected, tested - expected]]
    return Accuracy(
        rows=rows,
        no_class=int(np.sum(~newest[request_rows.ANSWER].isin(network.model.terms.classes))),
        measured=share_interval(right / rows, rows),
        promised=share_interval(promise["accuracy"], tested),
        p_value=float(scipy.stats.fisher_exact(table, alternative="less").pvalue),
        level=level,
    )


def _waiting(rows: int, look: str) -> str:
    return f"rows     {rows} of {LEAST_ROWS} that the {look} look needs; those of the last minute are not counted yet"


def _percent(share: Interval) -> str:
    return f"{100 * share.estimate:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def _write_page(looks: Sequence[Look], network: OpenNetwork, out: Path) -> None:
    environment = Environment(
        loader=PackageLoader("simic.serving"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["percent"] = _percent
    # What is found comes first, then what has moved most.
    look = looks[-1]
    columns = sorted(look.compared, key=lambda column: (not column.is_finding, -column.psi))
    page = environment.get_template(PAGE).render(
        look=look,
        looks=looks,
        columns=columns,
        label=network.model.terms.label,
        alpha=shifts.ALPHA,
        least_psi=shifts.LEAST_PSI,
    )
    durable.replace_file(out / PAGE, page.encode())
