"""Paths are data: a project may lie under any name that a file system allows."""

import getpass
import os
import pwd
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy import create_engine

from simic.pipeline.paths import name_user, sqlite_uri


@pytest.mark.parametrize("name", ["a%20b", "50%", "a?b", "a#b&c='d';e@f:[g] ü+h"])
def test_a_database_lies_where_its_uri_says(name: str, tmp_path: Path) -> None:
    file = tmp_path / name / "mlflow.db"
    file.parent.mkdir()
    with create_engine(sqlite_uri(file)).connect() as connection:
        connection.exec_driver_sql("CREATE TABLE t (x)")
    assert file.exists() and [path.name for path in tmp_path.iterdir()] == [name]
    # MLflow makes the folder of what follows the scheme.
    if "?" not in name:
        assert Path(sqlite_uri(file).removeprefix("sqlite:///")).parent == file.parent


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_has_its_number(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC, MLflow and torch ask for the name, and end in a traceback."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "x")  # so that it is put back
        monkeypatch.delenv(variable)
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=error))
    name_user()
    assert getpass.getuser() == str(os.getuid())
