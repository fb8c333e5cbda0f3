"""The long proof: hundreds of SIGKILLs at random moments and aimed at every change of a file, and nothing is lost, done
twice or other than in a project never killed. `make prove` prints its certificate; SIMIC_KILLS gives other numbers of
random kills, of training and of each program: SIMIC_KILLS=10,2.
"""

import itertools
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from simic.pipeline import lives, verify_resume
from simic.pipeline.lives import Moment
from simic.pipeline.paths import Workspace
from tests.flows.conftest import prefect_server  # noqa: F401 - a fixture
from tests.pipeline import killed_chain
from tests.pipeline.killed_chain import copy, evaluate_stage, killed_program, left, outputs, train_stage

pytestmark = pytest.mark.prove
RANDOM_KILLS, PROGRAM_KILLS = map(int, os.environ.get("SIMIC_KILLS", "110,12").split(","))
FLOW = "from flows.pipeline import simic; simic()"


@dataclass
class Certificate:
    """What all proofs of this file came to."""

    kills: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    differing: int = 0
    retrained: int = 0

    def add(self, parting: verify_resume.Parting) -> None:
        self.bytes += parting.bytes
        self.differing += parting.differing_bytes

    def page(self) -> str:
        where = ", ".join(f"{count} {name}" for name, count in self.kills.items())
        return (
            f"\n{sum(self.kills.values())} kills by SIGKILL ({where})\n"
            f"{self.differing} of {self.bytes} bytes differ: checkpoints/, models/, telemetry/ without wall times, "
            f"evaluation.json, metrics.json, dvc.lock, MLflow's points\n"
            f"{self.retrained} iterations trained again beyond the one that a kill cut short"
        )


@pytest.fixture(scope="module")
def proved(request: pytest.FixtureRequest) -> Iterator[Certificate]:
    found = Certificate()
    yield found
    plugins = request.config.pluginmanager
    with plugins.getplugin("capturemanager").global_and_fixture_disabled():
        plugins.getplugin("terminalreporter").write_line(found.page())


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, initialised: bytes) -> Workspace:
    return killed_chain.make(tmp_path_factory.mktemp("prove") / "begun", initialised)


@pytest.fixture
def own(begun: Workspace, tmp_path: Path) -> Workspace:
    """A copy whose further copies are beside it."""
    return killed_chain.copy_to(begun, tmp_path / "begun")


def test_training_that_is_killed_at_random_loses_nothing(own: Workspace, proved: Certificate) -> None:
    """Mid-episode, in writes of checkpoints and telemetry, in publication, in DVC's and MLflow's record."""
    proof = verify_resume.Proof(own, RANDOM_KILLS, 1, print, train_stage, left)
    tally = proof.run()
    assert tally.failures == []
    proved.kills += Counter({f"training, {name}": count for name, count in tally.kills.items()})
    proved.retrained += tally.retrained
    for parting in tally.partings:
        proved.add(parting)
        assert parting.differing_bytes == 0, parting.differing
    assert tally.retrained == 0
    assert sum(tally.kills.values()) == RANDOM_KILLS


@pytest.mark.parametrize("where", ["checkpoint", "record", "publication"])
def test_a_training_that_is_killed_at_any_change_of_a_file_comes_to_the_same(
    where: lives.Where, own: Workspace, proved: Certificate
) -> None:
    """Each in a training of its own, which is then left in peace."""
    twin = copy(own, "twin")
    whole = lives.live(twin.root, None, 0)
    expected = verify_resume.contents(twin)
    assert whole.counts[where] > 5
    for change in range(1, whole.counts[where] + 1):
        child = copy(own, f"{where}-{change}")
        first = lives.live(child.root, Moment(where, change), 0)
        assert first.killed, first.said
        second = lives.live(child.root, None, 1)
        assert second.exitcode == 0, second.said
        proved.kills[f"any change, {where}"] += 1
        again = max(0, len({*first.begun} & {*second.begun}) - 1)
        proved.retrained += again
        parting = verify_resume.apart(expected, verify_resume.contents(child))
        proved.add(parting)
        assert (parting.differing_bytes, again) == (0, 0), (change, parting.differing)
        shutil.rmtree(child.root)


def test_an_evaluation_that_is_killed_at_any_change_is_done_again(own: Workspace, proved: Certificate) -> None:
    """All in one place: MLflow refuses a project that was copied."""
    trained = copy(own, "trained")
    assert lives.live(trained.root, None, 0, train_stage).exitcode == 0
    kept = copy(trained, "kept")
    expected = left(trained)
    for change in itertools.count(1):
        shutil.rmtree(trained.root)
        killed_chain.copy_to(kept, trained.root)
        life = lives.live(trained.root, Moment("publication", change), change, evaluate_stage)
        if not life.killed:
            break  # so many changes there are not
        proved.kills["evaluation"] += 1
        parting = verify_resume.apart(expected, left(trained))
        proved.add(parting)
        assert parting.differing_bytes == 0, (change, parting.differing)
    assert life.exitcode == 0, life.said
    assert proved.kills["evaluation"] > 5


def test_dvc_repro_that_is_killed_at_random_loses_nothing(own: Workspace, proved: Certificate) -> None:
    command = [sys.executable, "-P", "-m", "dvc", "repro", "evaluate"]
    _killed(own, command, "dvc repro", proved)


@pytest.mark.usefixtures("prefect_server")
def test_a_flow_that_is_killed_at_random_loses_nothing(own: Workspace, proved: Certificate) -> None:
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    _killed(own, [sys.executable, "-c", FLOW], "flow", proved, {"PREFECT_API_URL": str(url)})


def _killed(own: Workspace, command: list[str], name: str, proved: Certificate, env: dict | None = None) -> None:
    twin, children = killed_program(own, command, PROGRAM_KILLS, 1, env)
    proved.kills[name] += PROGRAM_KILLS
    for child in children:
        parting = verify_resume.apart(outputs(twin), outputs(child))
        proved.add(parting)
        assert parting.differing_bytes == 0, parting.differing
