"""`simic promote` of networks, `simic rollback` and the history, on a real registry; killed in the middle."""

# ruff: noqa: F811 - fixtures are imported

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from simic.data.own.predict import SavedModel
from simic.errors import SimicError
from simic.pipeline import tracking
from simic.pipeline.paths import Workspace
from simic.serving import history
from simic.serving.request_rows import as_classes
from tests.conftest import Simic
from tests.helpers import ROOT, free_port, some
from tests.serving.conftest import registry, serving
from tests.serving.shop import (  # noqa: F401
    LABEL,
    NAME,
    aliases,
    initialised,
    project,
    shared_network,
    table,
    write_network,
)

BOTH = {"champion": "1", "challenger": "2"}
ON_NOW = ["promote", NAME, "--on", "now.csv"]


def right_pct(folder: str, rows: pd.DataFrame) -> float:
    answers = SavedModel(Path(folder)).predict(rows)["class"].to_numpy()
    return 100 * float((answers == rows[LABEL].to_numpy()).mean())


@pytest.fixture
def promoted(project: Workspace, simic: Simic) -> Workspace:
    """A project whose network is champion, and whose challenger learned the opposite."""
    write_network(project.root / "opposite", table(1500, seed=5, signal=-1.0))
    table(400, seed=9, signal=-1.0).to_csv(project.root / "now.csv", index=False)
    assert simic("register", "grown", "shop")[1] == f"{NAME} version 1: champion\n"
    assert simic("register", "opposite", "shop")[1] == f"{NAME} version 2: challenger\n"
    return project


def test_a_better_network_follows_and_is_taken_back_and_all_that_is_written_down(
    promoted: Workspace, simic: Simic
) -> None:
    # Not better: nothing is moved or written.
    table(400, seed=10).to_csv("then.csv", index=False)
    before = promoted.promotions.read_bytes()
    code, out, _ = simic("promote", NAME, "--on", "then.csv")
    assert code == 1 and "not promoted: the interval over the champion is not above 0" in out
    assert (aliases(promoted), promoted.promotions.read_bytes()) == (BOTH, before)

    # What the terminal says, computed by hand.
    now = table(400, seed=9, signal=-1.0)
    gain = right_pct("opposite", now) - right_pct("grown", now)
    assert simic(*ON_NOW)[0] == 0
    assert f"difference  {gain:+.2f} [" in simic.out and "rows        400" in simic.out
    assert aliases(promoted) == {"champion": "2"}
    assert "no version is the challenger" in simic.refuses(*ON_NOW)

    assert simic("rollback", NAME, "--reason", "it sold nothing")[0] == 0
    assert aliases(promoted) == {"champion": "1"}
    assert "has no champion before version 1" in simic.refuses("rollback", NAME, "--reason", "x")
    [_, (second, _), _] = history.changes(promoted)
    assert second.evidence["rows"] == 400 and len(str(second.evidence["sha256"])) == 64
    assert second.data and second.who
    assert simic("show", "--history")[0] == 0
    assert [line.split("  ")[2] for line in simic.out.splitlines()] == [
        f"promote {NAME} none -> 1: the first",
        f"promote {NAME} 1 -> 2: {second.reason}",
        f"rollback {NAME} 2 -> 1: it sold nothing",
    ]
    client, _ = tracking.connect(promoted)
    tags = client.get_model_version(NAME, "1").tags
    assert tags["simic.reason"] == "rollback 2 -> 1: it sold nothing"


def test_uneven_classes_count_alike(promoted: Workspace, simic: Simic) -> None:
    rows = table(2000, seed=11, signal=-1.0)
    few = rows[rows[LABEL] == "yes"].head(40)
    many = rows[rows[LABEL] == "no"].head(400)
    pd.concat([many, few]).to_csv("uneven.csv", index=False)
    simic("promote", NAME, "--on", "uneven.csv")
    mean = (right_pct("opposite", few) + right_pct("opposite", many)) / 2
    assert "measure     balanced accuracy" in simic.out and f"new         {mean:.2f}" in simic.out


def test_rows_without_a_label_are_left_out_of_the_comparison(
    promoted: Workspace, simic: Simic
) -> None:
    rows = table(400, seed=9, signal=-1.0)
    rows.assign(**{LABEL: rows[LABEL].where(rows.index > 9)}).to_csv("gaps.csv", index=False)
    gain = right_pct("opposite", rows[10:]) - right_pct("grown", rows[10:])
    assert simic("promote", NAME, "--on", "gaps.csv")[0] == 0
    assert f"difference  {gain:+.2f} [" in simic.out and "rows        390" in simic.out


def test_a_file_that_is_exchanged_meanwhile_is_not_compared(
    promoted: Workspace, simic: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchanged(*arguments: Any) -> Path:
        Path("now.csv").write_text("other\n")
        return download(*arguments)

    download = tracking.download
    monkeypatch.setattr(tracking, "download", exchanged)
    assert simic(*ON_NOW)[0] == 0 and "rows        400" in simic.out


def test_labels_that_are_written_as_numbers_are_the_classes() -> None:
    labels = pd.Series([1.0, 0.0, np.nan])
    for written in (labels, labels.astype(object), pd.Series(["1.0", "0", ""], dtype="str")):
        assert as_classes(written, ["0", "1"]).fillna("-").tolist() == ["1", "0", "-"]
    assert as_classes(pd.Series(["yes", "maybe"]), ["no", "yes"]).tolist() == ["yes", "maybe"]


def test_a_challenger_of_a_promotion_that_was_killed_half_way_is_none(
    promoted: Workspace, simic: Simic
) -> None:
    """Between the two aliases."""
    kill_9(promoted.root, "killing(tracking, 'take_alias', before=True)", ON_NOW)
    assert aliases(promoted) == {"champion": "2", "challenger": "2"}
    assert "no version is the challenger" in simic.refuses(*ON_NOW)
    assert aliases(promoted) == {"champion": "2"}


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ((NAME,), "version 2: needs labelled rows that neither it nor the champion"),
        ((NAME, "--on", "few.csv"), "few.csv: 99 rows: must be 100 or more"),
        ((NAME, "--on", "cities.csv"), "cannot be read: column 'age': not in the data"),
        ((NAME, "--on", "grown.csv"), "version 1 was trained on it"),
        ((NAME, "--on", "none.csv"), "none.csv: no such file"),
        (("a-run", "--on", "few.csv"), "--on few.csv: is for networks"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    promoted: Workspace, simic: Simic, arguments: tuple[str, ...], refusal: str
) -> None:
    table(99, seed=1).to_csv("few.csv", index=False)
    table(200, seed=1).drop(columns="age").to_csv("cities.csv", index=False)
    assert refusal in simic.refuses("promote", *arguments)
    assert aliases(promoted) == BOTH


KILLED = """
import os, signal, sys
from simic.pipeline import tracking
from simic.serving import journal
from simic.cli import app

def killing(module, name, before, turn=1):
    function = getattr(module, name)
    calls = []
    def killed(*arguments, **named):
        calls.append(name)
        if before and len(calls) == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = function(*arguments, **named)
        if len(calls) == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    setattr(module, name, killed)

{0}
app(sys.argv[1:])
"""


def kill_9(folder: Path, kill: str, command: list[str]) -> None:
    """Run a command in a process that is killed in its midst."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED.format(kill), *command],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=folder,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL


KILLS = [
    ("killing(journal, 'append', before=True)", None),
    ("killing(tracking, 'give_alias', before=True)", False),
    ("killing(tracking, 'give_alias', before=False)", True),
    ("killing(journal, 'append', before=True, turn=2)", True),
    ("killing(journal, 'append', before=False, turn=2)", True),
]


@pytest.mark.parametrize(("kill", "is_made"), some(KILLS, *KILLS[1:3]))
def test_kill_9_leaves_a_champion_and_a_history_that_is_right(
    promoted: Workspace, simic: Simic, kill: str, is_made: bool | None
) -> None:
    kill_9(promoted.root, kill, ON_NOW)
    assert aliases(promoted)["champion"] == ("2" if is_made else "1")
    # The next command settles whatever was begun.
    assert simic(*ON_NOW)[0] == (2 if is_made else 0)
    assert aliases(promoted)["champion"] == "2"
    outcomes = [made for _, made in history.changes(promoted)]
    assert outcomes == [True, *([] if is_made is None else [is_made]), *([] if is_made else [True])]
    assert simic("rollback", NAME, "--reason", "x")[0] == 0
    assert aliases(promoted)["champion"] == "1"


KILL_REGISTRY = """
def give_alias(*arguments):
    os.killpg({0}, signal.SIGKILL)
    return moved(*arguments)

moved = tracking.give_alias
tracking.give_alias = give_alias
"""


@pytest.mark.slow  # a minute without MLflow, whose server takes ten seconds to start
def test_a_registry_that_hangs_and_dies_in_a_promotion_costs_no_request(
    promoted: Workspace, simic: Simic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes: MLflow's server, simic serve, simic promote."""
    port = free_port()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    models = list[str]()
    seconds = list[float]()
    body = {"rows": [{"age": 40, "city": "Rom", "time": 1}]}

    def ask(until: Callable[[], bool]) -> None:
        while not until():
            begin = time.monotonic()
            status, answer = server.ask(body)
            assert status == 200
            seconds.append(time.monotonic() - begin)
            models.append(answer["model"])
            time.sleep(0.05)

    with contextlib.ExitStack() as stack:
        with registry(promoted.root, port) as group:
            server, _ = stack.enter_context(serving(promoted.root, NAME))
            os.killpg(group, signal.SIGSTOP)
            end = time.monotonic() + 60
            ask(lambda: time.monotonic() > end)
            os.killpg(group, signal.SIGCONT)
            program = KILLED.format(KILL_REGISTRY.format(group))
            command = [sys.executable, "-c", program, *ON_NOW]
            env = os.environ | {"PYTHONPATH": str(ROOT)}
            promotion = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
            ask(lambda: promotion.poll() is not None)
            assert promotion.returncode == 1
        assert server.metric("simic_refresh_failures_total") >= 2
        with registry(promoted.root, port):
            assert aliases(promoted) == BOTH
            assert simic(*ON_NOW)[0] == 0
            assert aliases(promoted) == {"champion": "2"}
            end = time.monotonic() + 60
            ask(lambda: models[-1:] == [f"{NAME}/2"] or time.monotonic() > end)
    assert [*dict.fromkeys(models)] == [f"{NAME}/1", f"{NAME}/2"] and max(seconds) < 2
    assert [is_made for _, is_made in history.changes(promoted)] == [True, False, True]


def test_a_registration_that_was_killed_is_finished_and_not_doubled(
    project: Workspace,
    simic: Simic,
) -> None:
    kill_9(
        project.root,
        "killing(tracking, 'register_network', before=False)",
        ["register", "grown", "shop"],
    )
    for _ in range(2):
        assert simic("register", "grown", "shop")[1] == f"{NAME} version 1: champion\n"
    assert len(history.changes(project)) == 1


def test_without_a_champion_nothing_is_taken_back(project: Workspace, simic: Simic) -> None:
    assert "no registered model with a champion" in simic.refuses("rollback", NAME, "--reason", "x")
    assert simic("show", "--history")[1] == "no promotion yet\n"
    project.promotions.write_text("no line\n")
    with pytest.raises(SimicError, match="damaged"):
        history.changes(project)
