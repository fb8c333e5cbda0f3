"""Commands that look at what runs have left, and at whether they can be gone on with."""

from pathlib import Path
from typing import Annotated

import typer

from simic import terminal
from simic.errors import SimicError

app = typer.Typer()


@app.command()
def doctor(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="Only what is stored in a published workspace, or a folder of .simic/work.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check what a run needs (versions, params, DVC, disk, ports) and all that is stored here; nothing is changed."""
    from simic.pipeline import doctor as physician
    from simic.pipeline import storage_checks

    here = terminal.workspace()
    answers = [] if run is not None else physician.examine(here)
    answers += storage_checks.examine(run or here.root)
    for answer in answers:
        terminal.say(f"{'ok ' if answer.well else 'BAD'}  {answer.question}: {answer.seen}")
    if not all(answer.well for answer in answers):
        raise SimicError("fix what is marked BAD above")


@app.command("verify-resume")
def verify_resume(
    kills: Annotated[int, typer.Option(min=1, help="How often trainings are killed in all; the audit wants 50.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the moments at which they are killed.")] = 1,
) -> None:
    """Kill small trainings of this project by SIGKILL, resume them, and compare every byte with one never killed.

    The exit code is 1 where anything differs.
    """
    from simic import params
    from simic.pipeline import verify_resume as proof

    workspace = terminal.workspace()
    tree = params.load(workspace.params)
    found = terminal.interruptible(lambda: proof.verify(tree, workspace, kills, seed, terminal.say), "verify-resume")
    terminal.say(found.page())
    terminal.say(f"written    {workspace.resume}; simic audit puts it into the report")
    if not found.sound:
        raise typer.Exit(1)


@app.command()
def show() -> None:
    """Open the report in a browser, and print where it is."""
    import webbrowser

    report = terminal.workspace().reports / "report.html"
    if not report.exists():
        raise SimicError(f"{report}: there is no report yet; simic run makes one")
    terminal.say(str(report))
    if not webbrowser.open(report.resolve().as_uri()):
        terminal.say("no browser was found here; open that file in one, or set BROWSER to a program")
