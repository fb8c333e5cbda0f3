"""Keep the history of champions beside the registry, and move the alias: intent, alias, outcome, each on disk in turn.

A process that is killed in between leaves a champion in any case, since MLflow moves an alias in one step, and an
intent without its outcome, which the next command settles by looking where the alias is.
"""

import getpass
import platform
from datetime import UTC, datetime
from typing import Literal

from pydantic import TypeAdapter

from simic.errors import SimicError
from simic.pipeline import dvc_record, tracking
from simic.pipeline.paths import Workspace
from simic.pipeline.tracking import CHALLENGER, CHAMPION, DATA_TAG, Store
from simic.serving import journal
from simic.serving.journal import Entry

REASON_TAG = "simic.reason"
DVC_TAG = "simic.dvc"  # the version of a retraining's data


class Change(Entry):
    """Say what is about to be done: who makes which version the champion, and why."""

    # From 1, of all changes.
    number: int
    time: datetime
    who: str
    action: Literal["promote", "rollback"]
    model: str
    before: str | None
    after: str
    reason: str
    evidence: dict[str, float | int | str]
    data: str
    code: str

    @property
    def line(self) -> str:
        """Write it for a terminal."""
        when = self.time.strftime("%Y-%m-%d %H:%M")
        versions = f"{self.before or 'none'} -> {self.after}"
        return f"{when}  {self.who}  {self.action} {self.model} {versions}: {self.reason}"


class ChangeOutcome(Entry):
    """Say whether a change was made."""

    outcome_of: int
    time: datetime
    is_made: bool


def move(
    workspace: Workspace,
    store: Store,
    version: tracking.ModelVersion,
    action: Literal["promote", "rollback"],
    reason: str,
    evidence: dict[str, float | int | str],
) -> None:
    """Make a version the champion, and write that down. Called under the lock of promotions, after ``settle``.

    Args:
        workspace: Whose history it is.
        store: With the registry.
        version: That becomes champion.
        action: Which command asks for it.
        reason: Also a tag of the version.
        evidence: What the reason rests on.
    """
    # The intent, with all that is known before.
    champion = tracking.version_with(store.client, version.name, CHAMPION)
    change = Change(
        number=len(changes(workspace)) + 1,
        time=datetime.now(UTC),
        who=f"{getpass.getuser()}@{platform.node()}",
        action=action,
        model=version.name,
        before=None if champion is None else str(champion.version),
        after=str(version.version),
        reason=reason,
        evidence=evidence,
        data=version.tags.get(DVC_TAG) or version.tags.get(DATA_TAG, ""),
        code=dvc_record.code_revision(workspace.root),
    )
    # First on disk, then done, then said to be done.
    journal.append(workspace.promotions, change)
    tracking.give_alias(store.client, version, CHAMPION)
    _finish(workspace, store, change, is_made=True)


def settle(workspace: Workspace, store: Store) -> None:
    """Find out what became of changes whose process was killed, and write it down."""
    for change, is_made in changes(workspace):
        if is_made is None:
            # MLflow knows whether the killed process came to it.
            champion = tracking.version_with(store.client, change.model, CHAMPION)
            is_moved = champion is not None and str(champion.version) == change.after
            # It may have been killed between the two steps of give_alias.
            if champion is not None and is_moved:
                tracking.take_alias(store.client, champion, CHALLENGER)
            _finish(workspace, store, change, is_moved)


def changes(workspace: Workspace) -> list[tuple[Change, bool | None]]:
    """List all changes in order, with whether they were made; None: that is not known yet."""
    # An outcome names its change, which stands anywhere before it.
    entries = journal.read(workspace.promotions, _ENTRIES)
    outcomes = {
        entry.outcome_of: entry.is_made for entry in entries if isinstance(entry, ChangeOutcome)
    }
    return [(entry, outcomes.get(entry.number)) for entry in entries if isinstance(entry, Change)]


def predecessor(workspace: Workspace, name: str, champion: str) -> str:
    """Find the version that a champion has followed; SimicError where the history has none."""
    # The newest first; a rollback made nobody that is to be followed back.
    for change, is_made in reversed(changes(workspace)):
        made_it = is_made and change.action == "promote" and change.after == champion
        if change.model == name and made_it and change.before is not None:
            return change.before
    raise SimicError(
        f"{name}: {workspace.promotions} has no champion before version {champion}; "
        "set the alias champion in MLflow by hand"
    )


def lines(workspace: Workspace) -> list[str]:
    """Write the history for a terminal."""
    # Killed ones that no command has settled yet are shown as they are.
    notes = {True: "", False: " (not made: it was killed)", None: " (unfinished)"}
    return [change.line + notes[is_made] for change, is_made in changes(workspace)]


def _finish(workspace: Workspace, store: Store, change: Change, is_made: bool) -> None:
    # MLflow shows it at the version; said twice it is the same.
    if is_made:
        text = f"{change.action} {change.before or 'none'} -> {change.after}: {change.reason}"
        store.client.set_model_version_tag(
            change.model, change.after, REASON_TAG, text[: tracking.LONGEST_NOTE]
        )
    outcome = ChangeOutcome(outcome_of=change.number, time=datetime.now(UTC), is_made=is_made)
    journal.append(workspace.promotions, outcome)


_ENTRIES = TypeAdapter(Change | ChangeOutcome)
