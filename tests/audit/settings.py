"""Settings of the tests that train on patches: all that the project's own params say otherwise for their own suite."""

import simic.data.suites.patches  # noqa: F401 - registers itself
from simic.data.suites.suites import SUITES

PATCHES = (
    "prepare.suite.name=patches",
    *SUITES["patches"].overrides,
    "headroom.search_tasks=8",
    "evaluate.epochs=null",
)
