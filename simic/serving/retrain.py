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
from simic.data.own.contract import as_parquet
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
    ROWS_UNTIL_TAG,
)
from simic.serving.request_rows import ANSWER, MODEL, REQUEST, TIME, NotedRequests

DATA = "data"
LABELLED = "data/labelled.parquet"
ROWS = "data/rows.csv"
CHALLENGERS = "challengers"
# In that table, beside the columns of the table, which may be called time.
ASKED = "time of the request"
REQUEST_ID = "id of the request"
# Of new labelled rows every third hundred is kept for the comparison, counted back from the newest: right after a shift
# both who trains and who compares have rows from after it.
KEPT_EVERY = 3
LEAST_NEW = 2 * LEAST_ROWS
# Of a version that was retrained: how many labelled rows there were.
LABELLED_TAG = "simic.labelled"


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
        if request.window is not None and request.window < 1:
            raise SimicError(f"window {request.window}: must be 1 or more, or left out")
        # Before anything is written.
        dvc_record.refuse_no_project(workspace.root)
        # Who is challenged.
        with tracking.answering():
            store = tracking.connect(workspace)
            version = tracking.version_with(store.client, request.model, CHAMPION)
        if version is None:
            raise SimicError(f"{request.model}: no registered model with a champion")
        with opened(workspace, f"{version.name}@{CHAMPION}") as champion:
            network = champion.model
            before = champion.promise["model"]

        # On which rows, in which version.
        production = workspace.production_of(version.name)
        tags = _write_rows(production, request, store, version, network, say)
        place = (production / DATA).relative_to(workspace.root)
        tags[DVC_TAG] = dvc_record.add(workspace.root, str(place))
        say(f"data       {place}.dvc {tags[DVC_TAG]}")

        # Grown where the data say; a folder that is there already was made of the same.
        folder = production / CHALLENGERS / tags[DVC_TAG][:8]
        if not folder.exists():
            growth = growing.Growth(
                str(production / ROWS),
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
    production: Path,
    request: Retraining,
    store: Store,
    champion: ModelVersion,
    network: NetworkModel,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Write the rows to train on and those to compare by; return tags of who is trained on them."""
    names = [column.name for column in network.columns]
    label = network.terms.label
    labelled: Any = _labelled(production, request, champion.name, network, say)
    until = champion.tags.get(ROWS_UNTIL_TAG, "")
    fresh = labelled[labelled[ASKED] > until]
    _refuse_few(store, champion, len(fresh), len(labelled))
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
    # The rows are text, as a user's own; these would end a line of it, or the file.
    text = rows.replace(r"[\0\r]", " ", regex=True).to_csv(index=False).encode()
    files = {
        production / LABELLED: as_parquet(labelled),
        production / ROWS: text,
        production / NEWEST: as_parquet(newest[[*names, label]]),
    }
    durable.replace_files(files)
    return {
        ROWS_UNTIL_TAG: max([until, *earlier[ASKED].tail(1)]),
        NEWEST_FROM_TAG: newest[ASKED].iloc[0],
        NEWEST_TAG: durable.sha256(production / NEWEST),
        LABELLED_TAG: str(len(labelled)),
    }


def _labelled(
    production: Path,
    request: Retraining,
    model: str,
    network: NetworkModel,
    say: Callable[[str], None],
) -> pd.DataFrame:
    """Gather all labelled requests by time, as text: those of the log and those that it has lost since."""
    columns = network.columns
    # Those of the log.
    log = NotedRequests.of(request.requests)
    if log.unreadable:
        say(f"unreadable {', '.join(log.unreadable)}")
    # Other models may have answered requests in the same log.
    rows = log.rows
    rows = rows[rows[MODEL].astype("str").str.rpartition("/")[0] == model]
    rows = request_rows.labelled(rows, request.labels, network.terms)
    sent = request_rows.features(rows, [column.name for column in columns])
    times = pd.to_datetime(rows[TIME], utc=True).dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    text: Any = pd.DataFrame(
        {
            ASKED: times,
            REQUEST_ID: rows[REQUEST],
            **{column.name: _in_form(sent[column.name], column) for column in columns},
            network.terms.label: rows[ANSWER],
        }
    )
    # Those of earlier retrainings.
    earlier = production / LABELLED
    if earlier.exists():
        past: Any = pd.read_parquet(earlier)
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


def _refuse_few(store: Store, champion: ModelVersion, fresh: int, labelled: int) -> None:
    """Raise TooFewRows where there are too few rows that no champion or challenger had, trained on or kept.

    Args:
        store: With the registry.
        champion: The present one.
        fresh: Rows that it does not know.
        labelled: All that ever had a label.
    """
    with tracking.answering():
        versions = store.client.search_model_versions(f"name = '{champion.name}'")
        challenger = tracking.version_with(store.client, champion.name, CHALLENGER)
    # Also of one that was taken back: the same rows would only bring it again. One that is neither was half made.
    number = challenger and challenger.version
    past = [item for item in versions if REASON_TAG in item.tags or item.version == number]
    # None is lost, so that their number tells how many have come, also of requests long past.
    known = max((int(item.tags.get(LABELLED_TAG, 0)) for item in past), default=0)
    count = min(fresh, labelled - known)
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
