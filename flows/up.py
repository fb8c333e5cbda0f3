"""Run the Procfile by honcho: Prefect's server, a runner of simic/train and MLflow's UI, all on 127.0.0.1.

Ctrl-C, SIGTERM, a closed terminal and the end of one of them stop all.
"""

import os
import secrets
import signal
import sys
import tomllib
from pathlib import Path

from honcho import command, manager

from simic import durable
from simic.errors import SimicError, exit_with_message, printable
from simic.pipeline.paths import name_user

NAMES = ("127.0.0.1", "localhost")  # under which the servers answer
PREFECT_PORT = "4200"  # also in pyproject.toml, for the commands that talk to it
MLFLOW_PORT = "5000"
GRACE_SECONDS = 30  # a run in progress saves its state first
SETTINGS_FILE = Path("prefect.toml")  # read by every prefect command in the project
PROFILES_FILE = Path(".prefect") / "profiles.toml"
DATABASE = Path(".prefect") / "prefect.db"
SETTINGS = """# The password of `make serve`: prefect commands in this folder read it. Removed, it is written anew.
[api]
auth_string = "{0}"

[server.api]
auth_string = "{0}"
"""


def main() -> None:
    """Start everything with PORT and MLFLOW_PORT, and end when all have ended."""
    prefect_port = os.environ.get("PORT") or PREFECT_PORT
    mlflow_port = os.environ.get("MLFLOW_PORT") or MLFLOW_PORT
    _ensure_password()
    name_user()
    # The children inherit it. Job execution is off since MLflow would start more processes for it.
    os.environ |= {
        "PREFECT_PORT": prefect_port,  # honcho gives every process a PORT of its own
        "PREFECT_API_URL": f"http://127.0.0.1:{prefect_port}/api",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(
            f"http://{name}:{prefect_port}" for name in NAMES
        ),
        "MLFLOW_PORT": mlflow_port,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "SIMIC_MLFLOW_UI": f"http://127.0.0.1:{mlflow_port}",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }
    # A user's shell knows the usual port only.
    elsewhere = (
        "" if prefect_port == PREFECT_PORT else f"PREFECT_API_URL={os.environ['PREFECT_API_URL']} "
    )
    for line in (
        f"Prefect      http://127.0.0.1:{prefect_port}  (password: auth_string in {SETTINGS_FILE})",
        f"MLflow       http://127.0.0.1:{mlflow_port}/#/experiments?workflowType=machine_learning",
        f"start a run  {elsewhere}prefect deployment run simic/train --watch",
    ):
        print(printable(line), flush=True)
    # By default honcho kills after five seconds, in the middle of saving.
    manager.KILL_WAIT = GRACE_SECONDS
    # honcho itself would die of a closed terminal and leave its children behind.
    signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    sys.argv[1:] = ["start"]
    command.main()


def _ensure_password() -> None:
    """Write Prefect's settings with a random password, readable by their owner alone, unless there are some."""
    try:
        handle = os.open(SETTINGS_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        _refuse_damaged()
        return
    with open(handle, "w", encoding="utf-8") as file:
        file.write(SETTINGS.format(f"simic:{secrets.token_urlsafe(24)}"))


def _refuse_damaged() -> None:
    """Raise SimicError where a file that Prefect's processes begin with is damaged: each would end in a traceback."""
    for file in (SETTINGS_FILE, PROFILES_FILE):
        try:
            tomllib.loads(file.read_text(encoding="utf-8") if file.exists() else "")
        except (OSError, ValueError) as error:
            raise SimicError(f"{file}: not readable: {error}; repair or remove it") from None
    # An empty one is filled.
    made = DATABASE.exists() and DATABASE.stat().st_size
    if made and (damage := durable.database_damage(DATABASE, "flow_run")):
        raise SimicError(
            f"{DATABASE}: damaged: {damage}; move it away, with its runs and schedules"
        )


if __name__ == "__main__":
    with exit_with_message("make serve"):
        main()
