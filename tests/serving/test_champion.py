"""The registry's champion is served, and a new one without a lost request; without the registry the old one goes on."""

import shutil
import threading
from pathlib import Path

import pytest

from simic.errors import SimicError
from simic.pipeline import tracking
from simic.pipeline.paths import Workspace
from simic.pipeline.tracking import CHALLENGER, CHAMPION
from simic.serving import promotion
from simic.serving.champions import opened
from simic.serving.sources import FolderSource, find_source
from tests.conftest import Simic
from tests.helpers import ROOT
from tests.pipeline.conftest import initialised, workspace  # noqa: F401
from tests.serving.conftest import rows_of, running, table

pytestmark = pytest.mark.filterwarnings("ignore")  # inside MLflow, about types

NAME = "simic-rain"
BODY = {"rows": rows_of(table(3))}


@pytest.fixture
def registered(workspace: Workspace, networks: list[Path]) -> Workspace:  # noqa: F811
    for folder in networks:
        promotion.register(workspace, folder, "rain")
    return workspace


def test_the_first_is_champion_the_next_challenger_and_each_is_registered_once(
    registered: Workspace, networks: list[Path], simic: Simic
) -> None:
    client = tracking.connect(registered).client
    versions = {str(v.version): v for v in client.search_model_versions(f"name = '{NAME}'")}
    model = client.get_registered_model(NAME)
    assert {key: str(value) for key, value in model.aliases.items()} == {
        CHAMPION: "1",
        CHALLENGER: "2",
    }
    assert [*sorted(versions)] == ["1", "2"] and versions["1"].description == "# A card"
    run = client.get_run(versions["1"].run_id)
    assert run.info.status == "FINISHED"
    # Again: nothing is doubled, and the champion stays champion.
    code, out, _ = simic("register", networks[0], "rain", root=registered.root)
    assert (code, out) == (0, "simic-rain version 1: champion\n")
    assert len(client.search_model_versions(f"name = '{NAME}'")) == 2
    refusal = simic.refuses("register", registered.root, "rain", root=registered.root)
    assert "no network of a table" in refusal


def test_a_new_champion_is_taken_while_requests_go_on(registered: Workspace) -> None:
    client = tracking.connect(registered).client
    with running(find_source(NAME, registered), poll=0.1) as server:
        answers = list[tuple[int, dict]]()
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                answers.append(server.ask(BODY))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            tracking.give_alias(client, client.get_model_version(NAME, "2"), CHAMPION)
            while not any(answer["model"].endswith("/2") for _, answer in answers[-3:]):
                stop.wait(0.05)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        assert {status for status, _ in answers} == {200}
        assert {answer["model"] for _, answer in answers} == {f"{NAME}/1", f"{NAME}/2"}
        # Each answer is that of the model that it names.
        assert len({(a["model"], *a["probability"]) for _, a in answers}) == 2


def test_the_old_one_goes_on_where_the_new_one_is_damaged_or_there_is_none(
    registered: Workspace,
) -> None:
    client = tracking.connect(registered).client
    with running(find_source(f"{NAME}@champion", registered)) as server:
        refresh = server.service.refresh
        # A program that torch cannot load.
        source = str(client.get_model_version(NAME, "2").source).removeprefix("file://")
        [program] = Path(source).rglob("network.pt2")
        content = program.read_bytes()
        program.write_bytes(content[:1000])
        tracking.give_alias(client, client.get_model_version(NAME, "2"), CHAMPION)
        refresh()
        assert server.metric("simic_refresh_failures_total") == 1
        assert server.ask(BODY)[1]["model"] == f"{NAME}/1"
        program.write_bytes(content)
        refresh()
        assert server.ask(BODY)[1]["model"] == f"{NAME}/2"
        client.delete_registered_model_alias(NAME, CHAMPION)
        refresh()
        assert server.ask(BODY)[1]["model"] == f"{NAME}/2"
        assert server.metric("simic_refresh_failures_total") == 2


def test_a_policy_is_not_watched(workspace: Workspace, policies: list[Path]) -> None:  # noqa: F811
    with (
        pytest.raises(SimicError, match="is a policy; only networks are watched"),
        opened(workspace, str(policies[0])),
    ):
        pass


def test_the_champion_of_the_project_is_a_policy(
    workspace: Workspace,  # noqa: F811
    policies: list[Path],
) -> None:
    shutil.copy(ROOT / "params.yaml", workspace.params)
    shutil.copytree(policies[0], workspace.models / "program")
    workspace.model_card.parent.mkdir()
    workspace.model_card.write_text("# Its card")
    store = tracking.connect(workspace)
    run_id = store.client.create_run(store.experiment_id).info.run_id
    model = tracking._log_policy(store, run_id, workspace, {})
    version = tracking._register(store.client, run_id, model, "simic-tables", {})
    tracking.give_alias(store.client, version, CHAMPION)
    with running(find_source("champion", workspace)) as server:
        status, answer = server.ask({"observations": [[0.0] * 4]})
        assert status == 200 and answer["model"] == "simic-tables/1"
        assert server.ask(path="/model")[1]["card"] == "# Its card"


def test_a_model_is_a_folder_a_name_or_an_alias_of_the_project(
    registered: Workspace, networks: list[Path], simic: Simic
) -> None:
    shutil.copy(ROOT / "params.yaml", registered.params)
    assert isinstance(find_source(str(networks[0]), registered), FolderSource)
    assert find_source(f"{NAME}@challenger", registered).newest() == f"{NAME}/2"
    with pytest.raises(SimicError, match="simic-tables: no version is the champion, or no such"):
        find_source("champion", registered).newest()
    root = registered.root
    assert "simic-rain: no version is the best" in simic.refuses("serve", f"{NAME}@best", root=root)
    assert "has no network.pt2 or policy.pt2" in simic.refuses("serve", root, root=root)
    host = ("--host", "0.0.0.0")
    assert "set SIMIC_TOKEN to a secret" in simic.refuses("serve", networks[0], *host, root=root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
        assert "MLflow does not answer" in simic.refuses("serve", NAME, root=root)
