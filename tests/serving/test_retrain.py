"""`simic retrain` on a real registry and a real DVC: what a challenger is trained on, and that it may be killed."""

# ruff: noqa: F811 - fixtures are imported

import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from simic import params
from simic.data.own.contract import Contract
from simic.errors import SimicError
from simic.pipeline import tracking
from simic.pipeline.paths import Workspace
from simic.serving.retrain import Retraining, retrain
from tests.conftest import Simic
from tests.helpers import some
from tests.serving.shop import (  # noqa: F401
    LABEL,
    NAME,
    aliases,
    initialised,
    note_requests,
    project,
    shared_network,
    table,
)
from tests.serving.test_promotion import kill_9

COMMAND = ["retrain", NAME, "--data", "old.csv", "--labels", "labels.csv", "--n", "1"]


@pytest.fixture
def served(project: Workspace, simic: Simic) -> Workspace:
    """A project whose champion has answered 600 requests of another kind, all labelled but ten."""
    assert simic("register", "grown", "shop")[0] == 0
    table(300, seed=0).to_csv("old.csv", index=False)
    answer(0)
    return project


def answer(number: int) -> None:
    """Answer 600 requests of another kind; all but the last ten are labelled."""
    rows = table(600, seed=20 + number, shift=0.5, signal=-1.0)
    labels = note_requests(Path("requests"), Path("grown"), rows, number, f"{NAME}/1")
    labels.iloc[:-10].to_csv("labels.csv", mode="a", index=False, header=number == 0)


def test_a_challenger_learns_old_and_new_rows_and_is_compared_on_newer_ones(
    served: Workspace, simic: Simic
) -> None:
    assert simic(*COMMAND, "--window", "500")[0] == 0, simic.out
    data = served.production_of(NAME) / "data"
    labelled, newest = (
        pd.read_parquet(data / f"{name}.parquet") for name in ("labelled", "newest")
    )
    rows = pd.read_csv(data / "rows.csv")
    # Kept as text, which a table of numbers is compared with.
    newest = newest.astype({"age": float, "time": int})
    # 590 are labelled: every third hundred is kept, the others are 390 of the 500 that are trained on.
    assert (len(labelled), len(rows), len(newest)) == (590, 500, 200)
    both = table(600, seed=20, shift=0.5, signal=-1.0)
    expected = pd.concat([table(300, seed=0)[190:], both[:190], both[290:490]])
    kept = pd.concat([both[190:290], both[490:590]])
    for made, known in ((rows, expected), (newest, kept)):
        assert made.age.to_numpy() == pytest.approx(known.age.to_numpy(), nan_ok=True)
        for name in ("city", "time", LABEL):
            assert made[name].tolist() == known[name].tolist()
    # DVC has the data, MLflow their version, the report what changes.
    recorded = yaml.safe_load((served.production_of(NAME) / "data.dvc").read_text())["outs"][0][
        "md5"
    ]
    client, _ = tracking.connect(served)
    assert client.get_model_version(NAME, "2").tags["simic.dvc"] == recorded
    assert aliases(served) == {"champion": "1", "challenger": "2"}
    # What clients may send to the one they may send to the other.
    [contract] = served.production_of(NAME).glob("challengers/*/contract.json")
    assert Contract.read(contract).ignored == ("till",)
    assert (
        "| gradient boosting" in simic.out and "challenger version 2 of simic-shop: " in simic.out
    )

    assert simic("promote", NAME)[0] == 0
    assert "rows        200" in simic.out and aliases(served) == {"champion": "2"}
    # Taken back, it does not return by the same rows.
    assert simic("rollback", NAME, "--reason", "x")[0] == 0
    assert "0 labelled requests that no network was trained on" in simic.refuses(*COMMAND)
    # Rows that the log has lost are still there.
    Path("requests/requests-000-7.parquet").unlink()
    answer(1)
    Path("requests/requests-002-7.parquet").write_text("damaged")
    assert simic(*COMMAND)[0] == 0
    assert "unreadable requests-002-7.parquet" in simic.out
    assert len(pd.read_parquet(data / "labelled.parquet")) == 1180


def test_rows_that_a_champion_knows_do_not_judge_it(served: Workspace, simic: Simic) -> None:
    assert simic(*COMMAND)[0] == 0
    client, _ = tracking.connect(served)
    client.set_model_version_tag(NAME, "1", "simic.rows_until", "2026-01-01T00:08:00.000000Z")
    assert "version 1, the champion, was trained on rows" in simic.refuses("promote", NAME)
    client.delete_model_version_tag(NAME, "1", "simic.rows_until")
    (served.production_of(NAME) / "data" / "newest.parquet").write_text("other\n")
    assert "dvc checkout brings them back" in simic.refuses("promote", NAME)


def test_labels_of_requests_long_past_count_as_new(served: Workspace, simic: Simic) -> None:
    labels = Path("labels.csv").read_text().splitlines(keepends=True)
    # The newest requests are labelled first.
    Path("labels.csv").write_text("".join([labels[0], *labels[301:]]))
    assert simic(*COMMAND)[0] == 0
    Path("labels.csv").write_text("".join(labels[:491]))
    assert simic(*COMMAND)[0] == 0
    assert "rows       690, the newest of 300 old and 390 new" in simic.out


def test_texts_that_no_table_of_lines_can_hold_and_columns_that_came_later(
    served: Workspace, simic: Simic
) -> None:
    file = Path("requests/requests-000-7.parquet")
    rows = pd.read_parquet(file).drop(columns="time_")
    rows.assign(city=rows.city.where(rows.index > 1, "a\0b\r")).to_parquet(file)
    for number in (0, 1):
        assert simic(*COMMAND)[0] == 0
        answer(number + 1)
    data = served.production_of(NAME) / "data"
    assert {"a b", "a b "} & {*pd.read_csv(data / "rows.csv").city}
    assert "a\0b" in {*pd.read_parquet(data / "labelled.parquet").city}


def test_models_of_one_project_have_data_of_their_own(served: Workspace, simic: Simic) -> None:
    assert simic(*COMMAND)[0] == 0
    assert simic("register", "grown", "inn")[0] == 0
    labels = note_requests(
        Path("requests"), Path("grown"), table(400, seed=9, signal=-1.0), 7, "simic-inn/1"
    )
    # One file of labels for both, and a folder that is called like a model.
    pd.concat([labels, pd.read_csv("labels.csv")]).to_csv("inn.csv", index=False)
    Path("simic-inn").mkdir()
    command = ["retrain", "simic-inn", *COMMAND[2:4], "--labels", "inn.csv", "--n", "1"]
    assert simic(*command)[0] == 0
    shop, inn = (
        pd.read_parquet(served.production_of(name) / "data" / "labelled.parquet")
        for name in (NAME, "simic-inn")
    )
    assert (len(shop), len(inn)) == (590, 400)
    assert simic("promote", NAME)[0] == 0 and simic("promote", "simic-inn")[0] == 0


def test_too_few_or_unfit_rows_are_one_line(served: Workspace, simic: Simic) -> None:
    labels = Path("labels.csv").read_text().splitlines(keepends=True)
    Path("labels.csv").write_text("".join(labels[:200]))
    assert "199 labelled requests" in simic.refuses(*COMMAND)
    Path("labels.csv").write_text("".join(labels))
    table(50, seed=1).drop(columns="city").to_csv("old.csv", index=False)
    assert "old.csv: no column 'city'" in simic.refuses(*COMMAND)
    assert "nobody: no registered model" in simic.refuses("retrain", "nobody", *COMMAND[2:])
    # Before anything is written.
    shutil.move(".dvc", "dvc")
    assert "not a DVC project" in simic.refuses(*COMMAND)
    assert not served.production_of(NAME).exists()
    # As a schedule may have it.
    request = Retraining(NAME, Path("old.csv"), Path("requests"), Path("labels.csv"), window=0)
    with pytest.raises(SimicError, match="window 0: must be 1"):
        retrain(params.Params(), served, request, print)


KILLS = [
    "from simic.pipeline import dvc_record; killing(dvc_record, 'add', before=True)",
    "from simic.pipeline import grow; killing(grow, 'grow', before=False)",
    "killing(tracking, 'give_alias', before=True)",
]


@pytest.mark.parametrize("kill", some(KILLS, KILLS[1]))
def test_kill_9_is_made_good_by_the_same_command(
    served: Workspace, simic: Simic, kill: str
) -> None:
    kill_9(served.root, kill, COMMAND)
    assert aliases(served) == {"champion": "1"}
    assert simic(*COMMAND)[0] == 0
    assert aliases(served) == {"champion": "1", "challenger": "2"}
    assert len([*(served.production_of(NAME) / "challengers").iterdir()]) == 1
    assert simic("promote", NAME)[0] == 0 and aliases(served) == {"champion": "2"}


def test_a_damaged_folder_is_one_line(project: Workspace, simic: Simic) -> None:
    Path("grown/README.md").unlink()
    assert "cannot be loaded: FileNotFoundError" in simic.refuses("serve", "grown")
    Path("grown/promise.json").unlink()
    Path("grown/README.md").touch()
    Path("grown/network.pt2").write_bytes(b"PK")
    assert "cannot be loaded: " in simic.refuses("watch", "grown")
