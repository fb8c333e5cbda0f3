"""One whole study, computed cell after cell in this process; read only."""

from typing import Any

import pytest

from simic.pipeline import stages
from simic.study import cells, table
from simic.study.plan import StudyPlan
from tests.pipeline.conftest import initialised  # noqa: F401
from tests.study.small_study import plan


@pytest.fixture(scope="session")
def ran() -> list[str]:
    """The shared stages that ``whole`` ran."""
    return []


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, ran: list[str]) -> StudyPlan:
    def counted(name: str) -> Any:
        original = stages.STAGES[name]

        def stage(*arguments: Any) -> None:
            ran.append(name)
            original(*arguments)

        return stage

    found = plan(tmp_path_factory.mktemp("study"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "STAGES", {**stages.STAGES, **{name: counted(name) for name in cells.SHARED}})
        for cell in found.cells:
            cells.run(cell, found.folder)
    table.write(found)
    return found
