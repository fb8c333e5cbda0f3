"""Name the place of every artifact; dvc.yaml names the same places and a test holds them together."""

import getpass
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

UI_VARIABLE = "SIMIC_MLFLOW_UI"  # address of MLflow's UI, where `make serve` has started one


def name_user() -> None:
    """Give a user without a name its number for one: containers have such users, and libraries ask for the name."""
    try:
        getpass.getuser()
    except (KeyError, OSError):  # KeyError before Python 3.13
        os.environ["USER"] = str(os.getuid())


class _Place:
    """Give an attribute that is a path below the workspace's root."""

    def __init__(self, path: str):
        self.path = path

    def __get__(self, workspace: "Workspace", owner: type) -> Path:
        return workspace.root / self.path


@dataclass(frozen=True)
class Workspace:
    """Name the folders and files of one project checkout (or of a study's run directory)."""

    root: Path

    params = _Place("params.yaml")
    raw = _Place("data/raw")  # downloaded or user-supplied sources; SIMIC_DATA_DIR overrides it
    prepared = _Place("data/prepared")
    checkpoints = _Place("checkpoints")
    models = _Place("models")
    telemetry = _Place("telemetry")
    reports = _Place("reports")
    headroom = _Place("reports/headroom.json")
    evaluation = _Place("reports/evaluation.json")
    metrics = _Place(
        "reports/metrics.json"
    )  # the few numbers of a run that are followed from run to run
    grown = _Place("reports/grown")  # the best network of the evaluation, as a plain module
    figures = _Place("reports/figures")
    model_card = _Place("reports/model_card.md")
    requests = _Place("requests")  # the log of `simic serve`
    production = _Place("production")  # looks at requests, the data of a retraining
    promotions = _Place("promotions.jsonl")  # who was made champion, when, why
    state = _Place(".simic")  # unfinished work, locks and caches: never versioned
    work_root = _Place(".simic/work")  # the training of this project, unfinished or not
    trials = _Place(".simic/tune.db")  # of all searches for better params
    trial_root = _Place(".simic/tune")  # the trial that is running
    tuned = _Place("tuned.yaml")  # params with the values of the best trial
    previous = _Place(".simic/previous")  # unfinished training of other settings, put by

    def production_of(self, model: str) -> Path:
        """Locate the data and challengers of a registered model."""
        return self.production / Path(model).name

    def watch_of(self, model: str) -> Path:
        """Locate the looks at a registered model, or at a network's folder."""
        return self.production / "watch" / Path(model).name

    def work(self, fingerprint: str) -> Path:
        """Locate the directory of the training with this identity."""
        return self.work_root / fingerprint[:16]


def sqlite_uri(file: Path) -> str:
    """Write the URI of a database, whose path SQLAlchemy takes as it is up to a question mark."""
    if "?" not in str(file):
        return f"sqlite:///{file}"
    # SQLite unquotes this form. It is not for all paths: MLflow makes the folders of file:/… where the process stands.
    return f"sqlite:///file:{quote(str(file), safe='/')}?uri=true"
