"""Everything that a check may read of one run: telemetry tables, evaluation, checkpoints, provenance."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from simic.audit.findings import ReplayResult
from simic.audit.provenance import RESTORED, Provenance
from simic.data.batches import Dataset, Meta, load_held_out, load_split
from simic.errors import SimicError
from simic.evaluation.gym_evaluation import PEER, RANDOM, GymEvaluation, GymHeadroom
from simic.evaluation.policies import RANDOM as RANDOM_GROWTH
from simic.evaluation.result import BLIND, LEARNED, SAMPLED, Evaluation, HeadroomReport
from simic.params import Params
from simic.telemetry.columns import Array, Columns, published
from simic.telemetry.publish import EPISODES_FILE, FINDINGS_FILE, STEPS_FILE, UPDATES_FILE
from simic.telemetry.rows import FindingRow, Row
from simic.training.checkpoint import Checkpoint

Steps = Mapping[str, Array]  # columns of one iteration's steps by name, [T, E] or [T, E, K]


@dataclass(frozen=True)
class Table:
    """Hold columns by name, all of one length; per-host columns are ``[rows, E]`` or ``[rows, E, K]``.

    Nested values are columns of their own, joined by a dot: ``entropy_by_head.op``.
    """

    columns: Mapping[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def resolved(self, name: str) -> str:
        """Find the name of a column; of a group of nested ones it is that of the first."""
        return next((column for column in self.columns if column.startswith(f"{name}.")), name)

    def column(self, name: str) -> Array:
        """Give one column; KeyError when it is not there (checks state their needs)."""
        return self.columns[name]

    def below(self, prefix: str) -> dict[str, Array]:
        """Select columns under a prefix, by the rest of their name: ``below("components")``."""
        start = prefix + "."
        return {
            name.removeprefix(start): values
            for name, values in self.columns.items()
            if name.startswith(start)
        }

    def where(self, rows: NDArray[np.bool_]) -> Self:
        """Select the rows for which ``rows`` is True."""
        return replace(self, columns={name: values[rows] for name, values in self.columns.items()})

    def measured(self, name: str) -> int:
        """Count the rows of a column with at least one value that is not NaN; 0 without such a column."""
        values = self.columns.get(name, np.zeros(0))
        # Counts and flags cannot be NaN: each of their rows is measured.
        if values.dtype.kind != "f" or not len(values):
            return len(values)
        return int((~np.isnan(values.reshape(len(values), -1))).any(axis=1).sum())

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Self:
        """Read a published table without an ``env`` axis."""
        columns = {
            name: _array(name, table.column(name).combine_chunks()) for name in table.column_names
        }
        return cls({_dotted(name): values for name, values in columns.items()})

    @classmethod
    def of_hosts(cls, table: pa.Table, shared: Sequence[str]) -> Self:
        """Read a published table with one row per host: ``env`` becomes the second axis of all columns but the
        ``shared`` ones, which are equal for all hosts. Moments that lack a host are left out; C1 and C3 find the gap.
        """
        # Without rows nobody knows how many hosts there were, and an axis of none cannot be folded.
        if not len(table):
            return cls()
        # A moment is a stretch of rows that agree in the shared columns.
        flat = cls.from_arrow(table)
        hosts = len(np.unique(flat.column("env")))
        begins = np.zeros(len(flat), dtype=bool)
        for name in shared:
            begins[1:] |= flat.column(name)[1:] != flat.column(name)[:-1]
        # Only moments of all hosts are folded.
        moment = np.cumsum(begins)
        flat = flat.where((np.bincount(moment) == hosts)[moment])
        # Shared columns are equal for all hosts of a moment by the way moments were cut, so the first host's will do.
        folded = {}
        for name, values in flat.columns.items():
            by_host = values.reshape(-1, hosts, *values.shape[1:])
            folded[name] = by_host[:, 0] if name in shared else by_host
        return cls({name: values for name, values in folded.items() if name != "env"})

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> Self:
        """Make a table of recorded rows, all of one kind; metrics under their own names."""
        # Metrics by their own names, so that live checks and those of published tables need the same columns.
        values = [{**vars(row), **getattr(row, "metrics", {})} for row in rows]
        names = [name for name in (values[0] if values else ()) if name != "metrics"]
        return cls({_dotted(name): _plain([row[name] for row in values]) for name in names})

    @classmethod
    def of_steps(cls, iteration: int, steps: Columns) -> Self:
        """Make a table of the recorded steps of one iteration."""
        # Steps count from 1 as in the published table: live and published steps are examined by the same checks.
        count = len(steps["reward"])
        axes = {"iteration": np.full(count, iteration), "step": np.arange(1, count + 1)}
        return cls({**axes, **{_dotted(name): published(values) for name, values in steps.items()}})


def _dotted(name: str) -> str:
    return name.replace("/", ".")


def _plain(values: list[int | float | str | None]) -> Array:
    """Write values as an array, NaN for None."""
    if any(isinstance(value, str) for value in values):
        return np.array(values, dtype=object)
    return np.array([np.nan if value is None else value for value in values])


def _array(name: str, column: pa.Array) -> Array:
    # Nested lists become axes. An array needs equal lengths; ragged rows would be folded to the wrong hosts.
    shape = [len(column)]
    while pa.types.is_list(column.type):
        lengths = set(column.value_lengths().to_pylist())
        if len(lengths) > 1:
            raise SimicError(
                f"telemetry column {name}: rows have {sorted(lengths)} values; all need the same hosts"
            )
        column = column.flatten()
        shape.append(lengths.pop() if lengths else 0)
    return column.to_numpy(zero_copy_only=False).reshape(shape)  # a null number is NaN


@dataclass(frozen=True, eq=False)  # hashed by identity: what is derived of one is remembered
class RunRecord:
    """Hold one run; all but telemetry is added with ``dataclasses.replace``.

    ``episodes`` are those that trained the policy, ``validations`` those that chose the best checkpoint.
    """

    params: Params
    updates: Table = Table()
    steps: Table = Table()
    episodes: Table = Table()
    validations: Table = Table()
    live_findings: Table = Table()
    headroom: HeadroomReport | None = None
    evaluation: Evaluation | None = None
    gym_headroom: GymHeadroom | None = None  # of a Gymnasium environment, in place of the two
    gym: GymEvaluation | None = None
    provenance: Provenance | None = None
    checkpoints: Mapping[str, Checkpoint] | None = None  # best and latest
    meta: Meta | None = None  # of the prepared data
    # By group of tasks and name of the split
    splits: Mapping[str, Mapping[str, Dataset]] | None = None
    # The numbers of metrics.json, by place
    metrics: Mapping[str, Mapping[str, float]] | None = None
    replays: Callable[[], tuple[ReplayResult, ...]] | None = None  # waits for them

    @classmethod
    def from_published(cls, params: Params, folder: Path) -> Self:
        """Read published telemetry (telemetry.publish); SimicError naming the file that is missing or damaged."""
        # Validations stand in the same file and must not be taken for episodes that trained the policy.
        episodes = Table.of_hosts(_read(folder / EPISODES_FILE), ("iteration", "split"))
        train = episodes.column("split") == "train" if len(episodes) else np.zeros(0, dtype=bool)
        updates = Table.from_arrow(_read(folder / UPDATES_FILE))
        return cls(
            params,
            updates=updates,
            steps=Table.of_hosts(_read(folder / STEPS_FILE), ("iteration", "step")),
            episodes=episodes.where(train),
            validations=episodes.where(~train),
            live_findings=Table.from_arrow(_read(folder / FINDINGS_FILE)),
        )

    def found_at_starts(self, check: str) -> list[FindingRow]:
        """List what training found by a check when it was started or resumed."""
        findings = self.provenance.origin.findings if self.provenance else ()
        return [finding for finding in findings if finding.check == check]

    def complete(self, needs: Sequence[str]) -> Self:
        """Leave out updates that lack a number in a needed column."""
        # A group of nested columns is judged by its first; what the others lack is left to the check that reads them.
        columns = [
            self.updates.resolved(need.partition(".")[2])
            for need in needs
            if need.startswith("updates.")
        ]
        # Only floats can be missing; a column that is not there at all is said by missing().
        measured = np.ones(len(self.updates), dtype=bool)
        for name in columns:
            if name in self.updates and self.updates.column(name).dtype.kind == "f":
                measured &= ~np.isnan(self.updates.column(name))
        return self if measured.all() else replace(self, updates=self.updates.where(measured))

    def missing(self, needs: Sequence[str], minimum: int) -> str | None:
        """Say which need is not met; None when all are."""
        # The first need that is not met is enough: the others often follow from it.
        for need in needs:
            source, _, column = need.partition(".")
            if column:
                table: Table = getattr(self, source)
                rows = table.measured(table.resolved(column))
                if rows < minimum:
                    return f"needs {minimum} measured rows of {need}, has {rows}"
            elif getattr(self, source) is None:
                return f"needs {source}, which this run does not have"
        return None

    def good_returns(self) -> str:
        """Say why the returns are good: signs of bad learning are no findings then. Empty where they are not.

        The evaluation decides; while there is none, whether returns have risen.
        """
        # Fresh episodes are the better proof.
        if self.evaluation is not None:
            return _good_growth(self.evaluation)
        if self.gym is not None:
            return _good_gym(self.gym)
        # Training that still runs has only its own returns. The quarters are compared, as single iterations are noise.
        returns = self.episodes.columns.get("return", np.zeros((0, 1)))
        means = np.array([float(np.nanmean(row)) for row in returns if np.isfinite(row).any()])
        quarter = len(means) // 4
        risen = quarter > 0 and means[-quarter:].mean() > means[:quarter].mean()
        return "returns have risen" if risen else ""


def _good_growth(evaluation: Evaluation) -> str:
    """Say so where the policy beats chance, and neither a rule nor the best constant schedule beats it."""
    # Without chance to compare with, nothing shows that returns are good, and signs stay findings.
    over_random = evaluation.comparison(LEARNED, RANDOM_GROWTH)
    learned = next(iter(evaluation.standings.values())).policies.get(LEARNED)
    if over_random is None or learned is None or over_random.difference.low <= 0:
        return ""
    # Not shown to be worse is enough here: whether the policy is better is a question of its own (F3, F4).
    gains = [gain for gain in (learned.over_rule, learned.over_common) if gain is not None]
    if any(gain.high < 0 for gain in gains):
        return ""
    return "the policy is better than chance and not worse than rule and best constant schedule"


def _good_gym(evaluation: GymEvaluation) -> str:
    """Say so where the policy beats chance, and no rule beats it."""
    # The peer is another learner, and blind and sampled are the policy itself: none of them is a rule to beat.
    gains = {
        pair.second: pair.difference
        for pair in evaluation.comparisons
        if pair.second not in (PEER, BLIND, SAMPLED)
    }
    chance = gains.get(RANDOM)
    if chance is None or chance.low <= 0 or any(gain.high < 0 for gain in gains.values()):
        return ""
    return "the policy is better than chance and not worse than any rule"


def _read(path: Path) -> pa.Table:
    try:
        return pq.ParquetFile(path).read()  # not read_table, which imports pandas
    # A missing file may never have been made: then the stage must run first. A damaged one is restored.
    except FileNotFoundError:
        raise SimicError(f"{path}: no such file; run simic train first, or {RESTORED}") from None
    except (OSError, pa.ArrowInvalid) as error:
        why = str(error).splitlines()[0]
        raise SimicError(f"{path}: not readable as a telemetry table: {why}; {RESTORED}") from None


def read_splits(prepared: Path) -> dict[str, dict[str, Dataset]]:
    """Load the samples of all splits, by group of tasks and name of the split, to see that they are apart."""
    # Splits are compared within a group: tasks of different groups may share samples by intention.
    held_out = load_held_out(prepared)
    # Tasks from outside the suite have a group for each of their widths.
    groups = {"held-out tasks": held_out}
    groups |= {f"outside tasks {number}": tasks for number, tasks in enumerate(held_out.outside)}
    return {
        "tasks of training": {name: load_split(prepared, name) for name in ("train", "val")},
        **{
            name: {"train": tasks.train, "val": tasks.val, "test": tasks.test}
            for name, tasks in groups.items()
        },
    }
