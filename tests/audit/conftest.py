"""The clean synthetic run of every test of the audit, ways to damage it, and a real run."""

import pytest

from simic.agent import export
from simic.audit.live import LiveAudit
from simic.pipeline import stages
from simic.pipeline.paths import Workspace

from .settings import small
from .synthetic import Plant, clean_run, publish_run


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """Publish the tables of the defect-free run; read only."""
    return publish_run(tmp_path_factory.mktemp("synthetic"))


@pytest.fixture(scope="session")
def clean(published):
    """Return the defect-free run."""
    return clean_run(published)


@pytest.fixture
def plant(clean):
    """Return ways to damage a copy of the clean run."""
    return Plant(clean)


class Kept(LiveAudit):
    """Remembers what it reported."""

    def __init__(self):
        super().__init__()
        self.findings = []

    def on_finding(self, finding):
        self.findings.append(finding)


@pytest.fixture(scope="session")
def live():
    return Kept()


@pytest.fixture(scope="session")
def workspace(tmp_path_factory, live):
    """Do all stages of a real run under live checks, but for the exported program, which the audit does not read."""
    place = Workspace(tmp_path_factory.mktemp("real"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "export_policy", lambda *_: None)
        patch.setattr(stages.dvc_record, "code_revision", lambda root: "abc")
        for name, stage in stages.STAGES.items():
            stage(small(), place, *([[live]] if name == "train" else []))
    return place


@pytest.fixture(scope="session")
def run(workspace):
    """Return the record of the real run."""
    return stages.recorded(small(), workspace)
