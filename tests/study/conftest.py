"""One whole study, computed cell after cell in this process; read only. Its programs, which no table has and which
take longer than all of this, are left out.
"""

from typing import Any

import pytest

from simic.agent import export as agent_export
from simic.growth import export as growth_export
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
    def counted(name: str, stage: Any) -> Any:
        return lambda *arguments: (ran.append(name), stage(*arguments))

    found = plan(tmp_path_factory.mktemp("study"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_export, "export_policy", lambda *_: None)
        patch.setattr(growth_export, "_program", lambda _: b"")
        for name in cells.SHARED:
            patch.setitem(stages.STAGES, name, counted(name, stages.STAGES[name]))
        for cell in found.cells:
            cells.run(cell, found.folder)
    table.write(found)
    return found
