"""`simic certify --code`: a small training with the user's params, interrupted once, whose every iteration and host the
reference derives; and the canary, a controller trained on a task whose answer is known.
"""

import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from simic.audit.certificate import Certificate
from simic.audit.certify import CertifiedRun, part
from simic.audit.provenance import PUBLISHED
from simic.audit.record import RunRecord
from simic.certify.canary import LEAST_WON_PCT, Canary, canary
from simic.certify.small_training import composed, thinned
from simic.params import Params
from simic.telemetry import publish
from simic.telemetry.columns import Columns
from simic.telemetry.rows import UpdateRow
from simic.training import checkpoint, kept_iteration
from simic.training.interrupts import Interrupted
from simic.training.observers import Observer
from simic.training.session import open_session
from simic.training.trainer import train


@dataclass(frozen=True)
class CodeCertificate:
    """Hold the comparisons of a small training, and the canary's result."""

    compared: Certificate
    canary: Canary

    @property
    def sound(self) -> bool:
        """Tell whether nothing differs and the canary won what clean code wins."""
        return self.compared.sound and self.canary.sound

    def page(self) -> str:
        """Return the certificate for a terminal."""
        won = f"{self.canary.won_pct:.1f} points above chance, clean code wins {LEAST_WON_PCT:g} or more"
        return f"{self.compared.page()}\n{'canary':<14} {won}"


def certify_code(params: Params, prepared: Path) -> CodeCertificate:
    """Train in a scratch folder, and compare with the reference."""
    with tempfile.TemporaryDirectory(prefix="simic-certify-") as scratch:
        subject = small_run(params, prepared, Path(scratch))
        parts = part("iterations", subject.iterations), part("episodes", lambda: subject.episodes(every=True))
    return CodeCertificate(Certificate(parts=parts), canary())


class _StopsAfterTheFirst(Observer):
    """Stop after the first iteration, so that the resume restores everything."""

    def __init__(self) -> None:
        self.stop = Event()

    def on_iteration(self, update: UpdateRow, episode: Columns) -> None:
        self.stop.set()


def small_run(params: Params, prepared: Path, scratch: Path) -> CertifiedRun:
    """Train a few iterations with the run's settings, resumed after the first, and publish everything."""
    data, work, published = scratch / "data", scratch / "work", scratch / "published"
    small = composed(params, thinned(prepared, data))
    first = _StopsAfterTheFirst()
    with open_session(small, work, data, fresh=True) as session, suppress(Interrupted):
        train(session, [first], first.stop)
    with open_session(small, work, data) as session:
        counters = train(session)
        assert counters.best_iteration is not None  # it is trained to its end
        extent, store = session.recorder.flush(), session.checkpoints
        chain = publish.links(work, extent)
        store.publish(published / "checkpoints", counters.best_iteration, counters.iteration, chain)
        publish.publish(work, extent, published / "telemetry", kept_iteration.published(small))
    run = RunRecord.from_published(small, published / "telemetry")
    kept = {name: checkpoint.read_published(published / "checkpoints", name) for name in PUBLISHED}
    run = replace(run, checkpoints=kept)
    return CertifiedRun(data, scratch / "grown", published / "telemetry", published / "checkpoints", run)
