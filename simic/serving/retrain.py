"""Run `simic retrain`: old rows and the newest labelled ones make a challenger, beside what is plainer.

Each step can be repeated: a retraining that was killed and is started again with the same rows finds what it had made.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simic import durable
from simic.data.own import predict, readers
from simic.data.raw_inputs import InputColumn
from simic.errors import SimicError
from simic.evaluation.export_best import FLOORS, PROMISE, RECOMMENDED
from simic.evaluation.floors import Floors
from simic.params import Params
from simic.pipeline import dvc_record, tracking
from simic.pipeline import grow as growing
from simic.pipeline.paths import Workspace
from simic.pipeline.tracking import CHALLENGER, CHAMPION, ModelVersion, Store
from simic.serving import request_rows
from simic.serving.champions import opened
from simic.serving.history import DVC_TAG, REASON_TAG
from simic.serving.networks import NetworkModel
from simic.serving.promotion import (
    LEAST_ROWS,
    NEWEST,
    NEWEST_FROM_TAG,
    NEWEST_TAG,
    NEWEST_UNTIL_TAG,
    ROWS_UNTIL_TAG,
)
from simic.serving.request_rows import ANSWER, REQUEST, TIME, NotedRequests

DATA = "data"
LABELLED = "data/labelled.csv"
ROWS = "data/rows.csv"
CHALLENGERS = "challengers"
# In labelled.csv, beside the columns of the table, which may be called time.
ASKED = "time of the request"
REQUEST_ID = "id of the request"
# Of the new labelled rows one in three is kept for the comparison, and not fewer than that needs.
# Of new labelled rows every third hundred is kept, counted back from the newest: right after a shift both who trains
# and who compares have rows from after it.
KEPT_EVERY = 3
LEAST_NEW = 2 * LEAST_ROWS


class TooFewRows(SimicError):
    """There are too few new labelled rows; more may come."""


@dataclass(frozen=True)
class Retraining:
    """Say what a challenger is made of."""

    # Of the registered model whose champion is challenged.
    model: str
    # The table that the first network was grown on.
    data: Path
    requests: Path
    labels: Path
    # Rows to train on, the newest; None: all.
    window: int | None = None
    hosts: int = 8


def retrain(
    params: Params, workspace: Workspace, request: Retraining, say: Callable[[str], None]
) -> str:
    """Grow a challenger, version its data by DVC, and register it.

    Args:
        params: Those of the project.
        workspace: Of the project, with the folder of production.
        request: What it is made of.
        say: Hears what is done.

    Returns:
        A sentence about the challenger.

    Raises:
        TooFewRows: There are too few labelled rows that no network has seen.
        SimicError: There is no champion, or something cannot be read.
    """
    with durable.locked(workspace.production / ".retrain.lock", "retrains"):
        # Who is challenged.
        with tracking.answering():
            store = tracking.connect(workspace)
            version = tracking.version_with(store.client, request.model, CHAMPION)
        if version is None:
            raise SimicError(f"{request.model}: no registered model with a champion")
        with opened(workspace, request.model) as champion:
            network = champion.model
            before = champion.promise["model"]

        # On which rows, in which version.
        tags = _write_rows(workspace, request, store, version, network, say)
        place = (workspace.production / DATA).relative_to(workspace.root)
        tags[DVC_TAG] = dvc_record.add(workspace.root, str(place))
        say(f"data       {place}.dvc {tags[DVC_TAG]}")

        # Grown where the data say; a folder that is there already was made of the same.
        folder = workspace.production / CHALLENGERS / tags[DVC_TAG][:8]
        if not folder.exists():
            growth = growing.Growth(
                str(workspace.production / ROWS),
                folder,
                hosts=request.hosts,
                target=network.terms.label,
                words=tuple(text["name"] for text in network.texts),
            )
            growing.grow(params, workspace, growth, lambda note: say(f"grow       {note}"))
        floors = Floors.model_validate_json((folder / FLOORS).read_bytes())
        for line in (*floors.table().split("\n"), floors.advice):
            say(line)

        # What a person should use is the challenger, whatever kind of model that is.
        chosen = folder / RECOMMENDED
        chosen = chosen if chosen.exists() else folder
        with tracking.answering():
            challenger = tracking.register_network(store, chosen, request.model, tags)
            tracking.give_alias(store.client, challenger, CHALLENGER)
        now = json.loads((chosen / PROMISE).read_bytes())["model"]
        change = "as before" if now == before else f"before: {before}"
        return f"version {challenger.version} of {challenger.name}: {now} ({change}), {chosen}"


def _write_rows(
    workspace: Workspace,
    request: Retraining,
    store: Store,
    champion: ModelVersion,
    network: NetworkModel,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Write the rows to train on and those to compare by; return tags of who is trained on them."""
    names = [column.name for column in network.columns]
    label = network.terms.label
    labelled: Any = _labelled(workspace, request, network, say)
    until = champion.tags.get(ROWS_UNTIL_TAG, "")
    fresh = labelled[labelled[ASKED] > until]
    _refuse_few(store, champion, fresh)
    # Some are kept for the comparison; the others are trained on, after the old rows.
    hundreds = np.arange(len(fresh))[::-1] // LEAST_ROWS
    newest = fresh[hundreds % KEPT_EVERY == 0]
    earlier = labelled.drop(newest.index)
    old = _old_rows(request.data, names, label)
    rows = pd.concat([old, earlier[[*names, label]]], ignore_index=True)
    rows = rows.tail(request.window or len(rows))
    # Without values, so that clients may go on sending what no network looks at.
    rows = rows.assign(**dict.fromkeys(network.terms.ignored))
    say(f"rows       {len(rows)}, the newest of {len(old)} old and {len(earlier)} new")
    say(f"compared   on {len(newest)} from {newest[ASKED].iloc[0]} to {newest[ASKED].iloc[-1]}")
    files = {LABELLED: labelled, ROWS: rows, NEWEST: newest[[*names, label]]}
    written = {
        workspace.production / name: table.to_csv(index=False).encode()
        for name, table in files.items()
    }
    durable.replace_files(written)
    return {
        ROWS_UNTIL_TAG: max([until, *earlier[ASKED].tail(1)]),
        NEWEST_FROM_TAG: newest[ASKED].iloc[0],
        NEWEST_UNTIL_TAG: newest[ASKED].iloc[-1],
        NEWEST_TAG: durable.sha256(workspace.production / NEWEST),
    }


def _labelled(
    workspace: Workspace,
    request: Retraining,
    network: NetworkModel,
    say: Callable[[str], None],
) -> pd.DataFrame:
    """Gather all labelled requests by time, as text: those of the log and those that it has lost since."""
    columns = network.columns
    label = network.terms.label
    # Those of the log.
    log = NotedRequests.of(request.requests)
    if log.unreadable:
        say(f"unreadable {', '.join(log.unreadable)}")
    rows = request_rows.labelled(log.rows(), request.labels, label)
    sent = request_rows.features(rows, [column.name for column in columns])
    times = pd.to_datetime(rows[TIME], utc=True).dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    text: Any = pd.DataFrame(
        {
            ASKED: times,
            REQUEST_ID: rows[REQUEST],
            **{column.name: _in_form(sent[column.name], column) for column in columns},
            label: rows[ANSWER],
        }
    )
    # Those of earlier retrainings.
    earlier = workspace.production / LABELLED
    if earlier.exists():
        past: Any = predict.read_table(earlier, readers.most_bytes())[0]
        # Of a column that an earlier champion did not read no values were kept.
        text = pd.concat([past.reindex(columns=text.columns), text])
        text = text.drop_duplicates(REQUEST_ID, keep="last")
    return text.sort_values([ASKED, REQUEST_ID], kind="stable").reset_index(drop=True)


def _in_form(values: Any, column: InputColumn) -> Any:
    """Write numbers as the first table has them, with their mark before decimals and their unit."""
    text = predict.as_text(values)
    if column.levels is not None:
        return text
    return text.str.replace(".", column.mark, regex=False) + column.unit


def _refuse_few(store: Store, champion: ModelVersion, fresh: Any) -> None:
    """Raise TooFewRows where there are too few rows that no champion or challenger had, trained on or kept."""
    with tracking.answering():
        versions = store.client.search_model_versions(f"name = '{champion.name}'")
        challenger = tracking.version_with(store.client, champion.name, CHALLENGER)
    # Also of one that was taken back: the same rows would only bring it again. One that is neither was half made.
    number = challenger and challenger.version
    past = [item for item in versions if REASON_TAG in item.tags or item.version == number]
    newest = max((item.tags.get(NEWEST_UNTIL_TAG, "") for item in past), default="")
    count = int((fresh[ASKED] > newest).sum())
    if count < LEAST_NEW:
        raise TooFewRows(
            f"{champion.name}: {count} labelled requests that no network was trained on: must be {LEAST_NEW} or more; "
            "wait for labels"
        )


def _old_rows(data: Path, names: list[str], label: str) -> pd.DataFrame:
    table = readers.read(data, label)
    if not isinstance(table.x, pd.DataFrame):
        raise SimicError(f"{data}: must be a table")
    columns = {predict.plain_name(name): values for name, values in table.x.items()}
    if missing := [name for name in names if predict.plain_name(name) not in columns]:
        raise SimicError(f"{data}: no column {missing[0]!r}, which the champion was trained on")
    text = {name: predict.as_text(columns[predict.plain_name(name)]) for name in names}
    return pd.DataFrame({**text, label: predict.as_text(table.y)})
