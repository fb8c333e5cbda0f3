"""Where every artifact lives; dvc.yaml names the same places and a test holds them together."""

from dataclasses import dataclass
from pathlib import Path

UI_VARIABLE = "SIMIC_MLFLOW_UI"  # address of MLflow's UI, where simic up has started one


@dataclass(frozen=True)
class Workspace:
    """The folders and files of one project checkout (or of a study's run directory)."""

    root: Path

    @property
    def params(self) -> Path:
        return self.root / "params.yaml"

    @property
    def raw(self) -> Path:
        """Downloaded or user-supplied sources; SIMIC_DATA_DIR overrides it."""
        return self.root / "data" / "raw"

    @property
    def prepared(self) -> Path:
        return self.root / "data" / "prepared"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def telemetry(self) -> Path:
        return self.root / "telemetry"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    @property
    def headroom(self) -> Path:
        return self.reports / "headroom.json"

    @property
    def metrics(self) -> Path:
        """The few numbers of a run that are followed from run to run."""
        return self.reports / "metrics.json"

    @property
    def evaluation(self) -> Path:
        return self.reports / "evaluation.json"

    @property
    def grown(self) -> Path:
        """The best network of the evaluation, as a plain module."""
        return self.reports / "grown"

    @property
    def certificate(self) -> Path:
        """What an independent reference says of the run."""
        return self.reports / "certificate.json"

    @property
    def resume(self) -> Path:
        """What `simic verify-resume` found."""
        return self.reports / "resume.json"

    @property
    def model_card(self) -> Path:
        return self.reports / "model_card.md"

    @property
    def figures(self) -> Path:
        return self.reports / "figures"

    @property
    def promotion(self) -> Path:
        """The last decision of `simic promote`."""
        return self.reports / "promotion.json"

    @property
    def state(self) -> Path:
        """Unfinished work, locks and caches: never versioned."""
        return self.root / ".simic"

    @property
    def finished(self) -> Path:
        """Where the last finished training is put by, so that it can be made longer."""
        return self.state / "finished"

    @property
    def mlflow_debts(self) -> Path:
        """A file for each run of which MLflow lacks something."""
        return self.state / "mlflow-owed"

    def mlflow_debt(self, run: str) -> Path:
        return self.mlflow_debts / f"{run}.json"

    def work(self, fingerprint: str) -> Path:
        """Return the directory of one unfinished training run."""
        return self.state / "work" / fingerprint[:16]

    def kept_runs(self) -> list[Path]:
        """Return the directories of all unfinished runs, then of the finished ones put by."""
        parents = (self.state / "work", self.finished)
        return [path for parent in parents for path in sorted(parent.glob("[!.]*")) if path.is_dir()]
