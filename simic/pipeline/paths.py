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
        """Of the policy, with its evaluation and the audit's verdict."""
        return self.reports / "model_card.md"

    @property
    def figures(self) -> Path:
        """Of the report, each a file."""
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

    def work(self, fingerprint: str) -> Path:
        """Directory of one unfinished training run."""
        return self.state / "work" / fingerprint[:16]
