"""Define the command line. Heavy imports are inside the commands, so that --help answers at once."""

import importlib.util
import io
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from simic.errors import EXIT_INTERRUPTED, AuditFailed, SimicError, exit_with_message, printable

if TYPE_CHECKING:
    from simic.evaluation.export_best import Grown
    from simic.params import Params
    from simic.pipeline.grow import Growth
    from simic.pipeline.paths import Workspace

T = TypeVar("T")
# Panels of --help.
STAGES = "A run and its stages"
GROWING = "Own data, own environment"
RESULTS = "Results"
PRODUCTION = "In production"
UPKEEP = "Upkeep"
# What a terminal obeys.
RED = "\x1b[1;31m"
PLAIN = "\x1b[0m"

app = typer.Typer(
    name="simic",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _refuse_repeated(overrides: list[str] | None) -> list[str] | None:
    from simic.params import refuse_repeated

    return refuse_repeated(overrides)


Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "-S",
        "--set",
        metavar="KEY=VALUE",
        callback=_refuse_repeated,
        help="Change a value of params.yaml, which gets it when all is done, as by dvc exp run -S.",
    ),
]
ParamsFile = Annotated[
    Path | None,
    typer.Option(
        "--params",
        metavar="FILE",
        help="Take all params from this file, or their defaults; params.yaml gets them when all is done (examples/).",
    ),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Discard unfinished training and start over.")]


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"simic {version('simic-grow')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Train a reinforcement-learning controller that grows neural networks, and audit the run."""


def main() -> None:
    """Run the command; print one line on stderr and exit with 2 for what the user can put right."""
    # A terminal that is not UTF-8 shows the arrows and signs of a report as escapes.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    from simic.pipeline.paths import name_user

    name_user()
    with exit_with_message("simic"):
        app()


@app.command(rich_help_panel=STAGES)
def prepare(set_: Overrides = None, params: ParamsFile = None) -> None:
    """Read the data, check it, split it."""
    _chain("prepare", set_, params)


@app.command(rich_help_panel=STAGES)
def train(set_: Overrides = None, params: ParamsFile = None, fresh: Fresh = False) -> None:
    """Train the controller, after prepare if that is out of date; an interrupted run resumes."""
    _chain("train", set_, params, fresh)


@app.command(rich_help_panel=STAGES)
def evaluate(set_: Overrides = None, params: ParamsFile = None) -> None:
    """Compare the trained policy with the baselines on the test split, after earlier stages that are out of date."""
    _chain("evaluate", set_, params)


@app.command(rich_help_panel=STAGES)
def audit(set_: Overrides = None, params: ParamsFile = None) -> None:
    """Check the run and write the report, after earlier stages that are out of date."""
    _to_the_audit(set_, params)


@app.command(rich_help_panel=RESULTS)
def explain(
    task: Annotated[
        str, typer.Argument(help="A task of the evaluation by name, or the number of a host in it.")
    ],
    step: Annotated[int, typer.Argument(help="From 1, as the report counts.")],
) -> None:
    """Print what the evaluated policy saw in one step, how likely each choice was, and what the decision hangs on."""
    from simic import params
    from simic.pipeline import stages

    workspace = _workspace()
    _say(stages.explain(params.load(workspace.params), workspace, task, step))


NetworkName = Annotated[
    str,
    typer.Argument(help="A registered model of networks, whose champion is meant, or a folder."),
]
RequestLog = Annotated[Path, typer.Option(metavar="FOLDER", help="The request log of the server.")]
Labels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A table with the columns request and the label, as far as it is known.",
    ),
]
REQUESTS = Path("requests")  # as of simic serve


@app.command(rich_help_panel=PRODUCTION)
def watch(
    model: NetworkName,
    requests: RequestLog = REQUESTS,
    labels: Labels = None,
) -> None:
    """Look whether requests are still as in training, and answers as right as promised; exit code 1: they are not."""
    from simic.serving import champions
    from simic.serving import watch as watching

    # The flow waits for labels; who names a file here means it.
    if labels is not None and not labels.exists():
        raise SimicError(f"{labels}: no such file; must be a table of labels, or left out")
    # Of a registered model the champion of this moment.
    workspace = _workspace()
    with champions.opened(workspace, model) as network:
        report = watching.watch(network, requests, workspace.watch_of(model), labels)
    for line in report.lines:
        _say(line)
    # For whoever runs this by a scheduler of their own: each finding once.
    if report.is_new and report.look is not None and report.look.findings:
        raise typer.Exit(1)


@app.command(rich_help_panel=PRODUCTION)
def retrain(
    model: Annotated[str, typer.Argument(help="A registered model of networks.")],
    data: Annotated[Path, typer.Option(metavar="FILE", help="The table of the first training.")],
    labels: Annotated[Path, typer.Option(metavar="FILE", help="As of simic watch.")],
    requests: RequestLog = REQUESTS,
    window: Annotated[
        int | None,
        typer.Option(min=1, help="Rows to train on, the newest; default: all.", show_default=False),
    ] = None,
    n: Annotated[int, typer.Option(min=1, help="As of simic grow.")] = 8,
) -> None:
    """Grow a challenger on old rows and labelled requests, beside plainer models; simic promote compares it."""

    def body() -> None:
        from simic import params
        from simic.serving import retrain as retraining

        # Growing needs no params.yaml: without one, defaults serve.
        workspace = _workspace()
        request = retraining.Retraining(model, data, requests, labels, window, n)
        tree = params.load(workspace.params) if workspace.params.exists() else params.Params()
        _say(f"challenger {retraining.retrain(tree, workspace, request, _say)}")
        _say(f"next       simic promote {model}")

    _interruptible(body, "retrain")


@app.command(rich_help_panel=PRODUCTION)
def promote(
    challenger: Annotated[
        str | None,
        typer.Argument(
            help="A registered model of networks, or the name or id of a policy's run; default: the policies' "
            "challenger.",
            show_default=False,
        ),
    ] = None,
    on: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Labelled rows that neither network has seen; default: those that simic retrain kept.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a network or a policy MLflow's champion if it beats the present one on what neither was trained on.

    Networks are compared on the newest labelled rows, policies on the same held-out tasks. Exit code 1: it does not.
    """
    from simic import params
    from simic.pipeline import engine
    from simic.serving import promotion

    workspace = _workspace()
    # Networks need no params.yaml.
    tree = params.load(workspace.params) if workspace.params.exists() else params.Params()
    # Under the lock: a stage that is running may be recording just now.
    with engine.workspace_lock(workspace):
        decision = promotion.promote(tree, workspace, challenger, on)
    for line in decision.lines:
        _say(line)
    if decision.objections:
        raise typer.Exit(1)


@app.command(rich_help_panel=PRODUCTION)
def rollback(
    name: Annotated[str, typer.Argument(help="A registered model, of networks or policies.")],
    reason: Annotated[str, typer.Option(help="Why, for the history.")],
) -> None:
    """Make the version that was MLflow's champion before the present one champion again."""
    from simic.serving import promotion

    # The command says who is champion now, and who was.
    for line in promotion.rollback(_workspace(), name, reason):
        _say(line)


@app.command(rich_help_panel=STAGES)
def headroom(
    out: Annotated[Path | None, typer.Option(help="Also write all numbers there, as JSON.")] = None,
    set_: Overrides = None,
) -> None:
    """Show what there is to win before anything is learned: floors, rules, a search over schedules, an oracle.

    Of the task in params.yaml, recorded like any stage.
    """
    from simic.evaluation.page import page
    from simic.evaluation.result import read_headroom

    workspace = _workspace()
    tree = _chain("headroom", set_, None)
    if tree.prepare.is_gym:
        from simic.evaluation import gym_evaluation

        _say(gym_evaluation.page(gym_evaluation.read_headroom(workspace.headroom)))
        return
    report = read_headroom(workspace.headroom)
    if out is not None:
        out.write_text(report.to_json(), encoding="utf-8")
    _say(page(report, tree.prepare.task))


@app.command(rich_help_panel=STAGES)
def run(set_: Overrides = None, params: ParamsFile = None, fresh: Fresh = False) -> None:
    """Run prepare, headroom, train, evaluate and audit; stages that are up to date are skipped."""
    _to_the_audit(set_, params, fresh)
    # Only now, so that a refusal above does not wait for what reads results.
    from simic.pipeline import run_summary, tracking

    workspace = _workspace()
    _say(f"MLflow   mlflow ui   then {tracking.address(workspace, run_summary.of(workspace).run)}")
    _say("all UIs  make serve")


@app.command(rich_help_panel=STAGES)
def tune(set_: Overrides = None, params: ParamsFile = None) -> None:
    """Search tune.space for params with a better validation score; the same command goes on with the search."""
    if importlib.util.find_spec("optuna") is None:
        raise SimicError("optuna is not installed; pip install 'simic-grow[tune]'")
    _chain("prepare", set_, params)

    def body() -> None:
        from simic.pipeline import engine
        from simic.pipeline import tune as tuning

        workspace = _workspace()
        with engine.workspace_lock(workspace):
            tuning.search(workspace, _say)

    _interruptible(body, "tune")


@app.command(rich_help_panel=STAGES)
def stage(
    name: Annotated[str, typer.Argument(help="prepare, headroom, train, evaluate or audit")],
) -> None:
    """Run one stage unconditionally and without recording it; dvc.yaml calls this."""

    def body() -> None:
        from simic import params
        from simic.pipeline import engine, stages

        if name not in stages.STAGES:
            raise SimicError(f"stage {name!r}: must be one of {', '.join(stages.STAGES)}")
        workspace = _workspace()
        with engine.workspace_lock(workspace):
            engine.run_alone(name, params.load(workspace.params), workspace, _say)

    _interruptible(body, name)


GrowData = Annotated[
    str | None,
    typer.Argument(
        help="A table (.csv, .tsv, .parquet, .feather, .arrow), arrays (.npz with x and y, x.npy beside y.npy), a "
        "folder with a folder of images for each class or saved by Hugging Face's datasets; with --task, its source.",
        show_default=False,
    ),
]
GrowTarget = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="The column to predict; default: the one named target, label, class or y.",
    ),
]
GrowWords = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="A column that is words, not numbers, whatever it looks like, such as codes; may be given again.",
        show_default=False,
    ),
]
GrowPolicy = Annotated[
    str,
    typer.Option(
        help="learned (the project's own or a published one), a suite's published one, a policy's directory, or a "
        "baseline: tuned_rule, patient, random_legal, static"
    ),
]
GrowHost = Annotated[
    str | None,
    typer.Option(
        metavar="FAMILY/PRESET",
        help="Default: the policy's own; for example cnn/baseline.",
    ),
]
GrowEpochs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Epochs that each network trains for, with a decision after each; default: the middle of what the policy "
        "was trained on.",
        show_default=False,
    ),
]


@app.command(rich_help_panel=GROWING)
def grow(
    data: GrowData = None,
    target: GrowTarget = None,
    words: GrowWords = None,
    layout: Annotated[
        str | None, typer.Option(help="Where channels of images are, if asked: nchw or nhwc.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="A task of params.yaml instead of own data: digits, mnist, text, ..."),
    ] = None,
    policy: GrowPolicy = "learned",
    host: GrowHost = None,
    n: Annotated[
        int,
        typer.Option(min=1, help="Networks grown side by side; the best by validation is kept."),
    ] = 8,
    out: Annotated[Path, typer.Option(help="New folder for the grown network.")] = Path("grown"),
    epochs: GrowEpochs = None,
    reference: Annotated[
        bool, typer.Option(help="Keep 2,000 rows of a table beside the network.")
    ] = True,
) -> None:
    """Grow a network on your own data with a trained controller or a baseline, and save it."""
    # Refused before anything heavy is imported.
    if data is None and task is None:
        raise SimicError(
            "grow: needs data, a file or a folder, or --task NAME; see simic grow --help"
        )
    # A link that leads nowhere is there too: the reader says what is wrong with it.
    if data is not None and not os.path.lexists(data):
        raise SimicError(f"{data}: no such file; must be one of those that simic grow --help names")
    if out.exists():
        raise SimicError(f"{out}: already exists; choose another folder or remove it")

    def body() -> None:
        from simic import params
        from simic.pipeline import grow as growing

        workspace = _workspace()
        request = growing.Growth(
            data,
            out,
            task,
            policy,
            host,
            n,
            epochs,
            target,
            layout,
            words=tuple(words or ()),
            reference=reference,
        )
        # Growing needs no project: without one, defaults serve.
        tree = params.load(workspace.params) if workspace.params.exists() else params.Params()
        grown = growing.grow(tree, workspace, request, lambda note: _say(f"data     {note}"))
        _say_grown(grown, request)

    _interruptible(body, "grow")


def _say_grown(grown: "Grown", request: "Growth") -> None:
    account = grown.account
    _say(f"policy   {account.grown_by}")
    _say(f"grown    {grown.path}: host {grown.host} of {request.hosts}")
    _say(f"size     {grown.params} parameters (the host alone {grown.host_params})")
    _say(
        f"accuracy {grown.val_accuracy_pct:.1f} % validation, {grown.test_accuracy_pct:.1f} % test"
    )
    if account.floors is not None:
        _say(f"\n{account.floors.table()}\n\n{account.floors.advice}\n")
    _say(f"card     {grown.path / 'README.md'}")
    # What is recommended comes first; the grown network is there in any case.
    if account.recommended is not None:
        _say_use(grown.path / "recommended", request, f" ({account.recommended.name})")
    _say_use(grown.path, request)


def _say_use(folder: Path, request: "Growth", name: str = "") -> None:
    """Say how to predict with a saved model; what is no network of simic's has its program alone."""
    if (folder / "weights.safetensors").exists():
        python = f"simic.growth.load_grown('{folder}')"
    else:
        python = f"torch.export.load('{folder / 'network.pt2'}').module()"
    # Own data need the reading that predict.py has; a task of simic's is read by simic.
    command = f"python {folder / 'predict.py'} DATA, or " if request.task is None else ""
    _say(f"use it   {command}{python}{name}")


@app.command(rich_help_panel=PRODUCTION)
def register(
    folder: Annotated[Path, typer.Argument(help="What simic grow saved, or recommended/ in it.")],
    name: Annotated[str, typer.Argument(help="Of the data; MLflow's model is simic-NAME.")],
) -> None:
    """Register a classifier of a table in MLflow: the first of a name is the champion, later ones challengers."""
    from simic.serving import promotion

    version = promotion.register(_workspace(), folder, name)
    _say(f"{version.name} version {version.version}: {', '.join(version.aliases)}")


@app.command(rich_help_panel=PRODUCTION)
def serve(
    model: Annotated[
        str,
        typer.Argument(
            help="A registered NAME or NAME@ALIAS (default: champion), champion for the policy of "
            "params.yaml, or a folder with a network or an exported policy."
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Beyond this machine SIMIC_TOKEN must be set.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    log: Annotated[bool, typer.Option(help="Log requests in the folder requests.")] = True,
) -> None:
    """Serve a network or a policy over HTTP, and each new version of it."""
    if importlib.util.find_spec("uvicorn") is None:
        raise SimicError("uvicorn is not installed; pip install 'simic-grow[serve]'")
    from simic.serving import app as server
    from simic.serving.service import Service
    from simic.serving.sources import find_source

    # The token comes from the environment: arguments are for everybody on the machine to read.
    workspace = _workspace()
    service = Service(find_source(model, workspace), workspace.requests if log else None)
    server.serve(service, host, port, os.environ.get("SIMIC_TOKEN", ""), _say)


@app.command(rich_help_panel=RESULTS)
def table(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of evaluated runs; default: the experiments of DVC.", show_default=False
        ),
    ] = None,
    metric: Annotated[str, typer.Option(help="A number of reports/metrics.json.")] = "score",
) -> None:
    """Compare settings over training seeds: the mean of a metric with its interval for each (docs/studies.md)."""
    from simic.pipeline import seed_table

    # Named folders need no DVC.
    if runs:
        evaluated = [seed_table.read_folder(run) for run in runs]
    else:
        evaluated = seed_table.read_experiments(_workspace().root)
    for line in seed_table.lines(evaluated, metric):
        _say(line)


@app.command(rich_help_panel=UPKEEP)
def clean() -> None:
    """Remove the training in .simic that could go on, and what was put by; results and records stay."""
    from simic.pipeline import engine, training_work

    workspace = _workspace()
    # Not while a training in there goes on.
    with engine.workspace_lock(workspace):
        removed = list(training_work.clean(workspace))
    for line in removed:
        _say(f"removed {line}")
    if not removed:
        _say("nothing to remove")


@app.command(rich_help_panel=UPKEEP)
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
    """Check what a run needs (versions, params, DVC, disk) and all that is stored here; nothing is changed."""
    from simic.pipeline import doctor as physician

    workspace = _workspace()
    # What is stored elsewhere says nothing about this machine.
    answers = [] if run is not None else physician.examine(workspace)
    answers += physician.examine_stored(run or workspace.root)
    for answer in answers:
        _say(f"{'ok ' if answer.well else 'BAD'}  {answer.question}: {answer.seen}")
    if not all(answer.well for answer in answers):
        raise SimicError("fix what is marked BAD above")


@app.command(rich_help_panel=RESULTS)
def show(
    history: Annotated[
        bool, typer.Option("--history", help="Print who was made champion, when and why.")
    ] = False,
) -> None:
    """Open the report in a browser, and print where it is."""
    import webbrowser

    # The report is one of policies; the history is of networks too.
    if history:
        from simic.serving import history as promotions

        for line in promotions.lines(_workspace()) or ["no promotion yet"]:
            _say(line)
        return

    # The path is printed in any case: over ssh no browser opens.
    report = _workspace().reports / "report.html"
    if not report.exists():
        raise SimicError(f"{report}: there is no report yet; simic run makes one")
    _say(str(report))
    if not webbrowser.open(report.resolve().as_uri()):
        _say("no browser was found here; open that file in one, or set BROWSER to a program")


def _to_the_audit(set_: list[str] | None, params: Path | None, fresh: bool = False) -> None:
    """Run the whole chain and print the result, also where ``audit.fail_on`` makes it fail."""
    try:
        # audit.fail_on turns findings into an error; the result is printed all the same.
        _chain("audit", set_, params, fresh)
    except AuditFailed:
        _tell_result()
        raise
    _tell_result()


def _tell_result() -> None:
    from simic.pipeline import run_summary

    # Read from the files, so that a run that was up to date prints the same.
    summary = run_summary.of(_workspace())
    for line in summary.lines:
        _say(line, alarming=summary.alarming)
    _say(f"report   {_workspace().reports / 'report.html'}")


def _chain(last: str, set_: list[str] | None, file: Path | None, fresh: bool = False) -> "Params":
    """Run the chain up to a stage with the overrides; return the params that it ran with."""
    from simic import params
    from simic.pipeline.overrides import from_file

    workspace = _workspace()
    # Bad values are refused in a millisecond, before anything heavy is imported.
    overrides = from_file(file, set_) if file else set_ or []
    params.load(workspace.params, overrides)

    def body() -> "Params":
        from simic.pipeline import engine

        with engine.workspace_lock(workspace):
            # Again: a run that has ended meanwhile may have changed params.yaml.
            tree = params.load(workspace.params, overrides)
            engine.run_chain(tree, workspace, last, engine.Execution(fresh=fresh), _say, overrides)
        return tree

    return _interruptible(body, "this run")


def _interruptible(body: Callable[[], T], doing: str) -> T:
    """Call ``body``; exit with a code of its own where it was asked to stop."""
    from simic.training.interrupts import Interrupted, stop_at_once

    try:
        # Signals count from here on: loading torch alone takes seconds.
        with stop_at_once(doing):
            return body()
    except Interrupted as stopped:
        print(printable(f"simic: {stopped}"), file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)


def _workspace() -> "Workspace":
    from simic.pipeline import paths

    return paths.Workspace(Path.cwd())


def _say(text: str, alarming: bool = False) -> None:
    """Print at once, with what a terminal would obey made visible; in red on a terminal where it is ``alarming``."""
    # NO_COLOR as on no-color.org: whatever its value, unless empty.
    coloured = alarming and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line in text.split("\n"):
        print(f"{RED}{printable(line)}{PLAIN}" if coloured else printable(line), flush=True)
