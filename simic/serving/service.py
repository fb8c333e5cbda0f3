"""Answer requests by the present model, and take a new one while requests go on."""

import logging
import secrets
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from simic.serving.bodies import read_object, read_rows
from simic.serving.metrics import Metrics
from simic.serving.networks import NetworkModel
from simic.serving.policies import STATE, Memory, PolicyModel, Sessions, Step
from simic.serving.refusals import Refusal
from simic.serving.request_log import RequestLog
from simic.serving.sources import ModelSource, loading

LOG = logging.getLogger(__name__)


class Service:
    """Hold what is served. A request is answered by the model that was there when it came.

    Args:
        source: Where models come from.
        log_folder: Of the request log; None: nothing is logged.
    """

    def __init__(self, source: ModelSource, log_folder: Path | None) -> None:
        self.metrics = Metrics()
        self._source = source
        self._sessions = Sessions()
        self._trouble = ""
        self.model = self._load(source.newest())
        # Episodes that began with it go on with it.
        self._previous = self.model
        lost = self.metrics.lost_rows.inc
        self.log = None if log_folder is None else RequestLog(log_folder, lost)

    def refresh(self) -> None:
        """Take the version that is to be served now; whatever fails, the present one stays."""
        try:
            version = self._source.newest()
            if version != self.model.version:
                # Loaded beside the present one, which goes on answering.
                model = self._load(version)
                self._previous = self.model
                self.model = model
                LOG.warning("serves %s now", version)
            self._trouble = ""
        # MLflow's client may end in errors of its own.
        except Exception as error:
            self.metrics.failures.inc()
            # Each trouble is told once, and counted each time.
            if str(error) != self._trouble:
                self._trouble = str(error)
                LOG.exception("goes on with %s", self.model.version)

    def predict(self, content: bytes, media: str, with_probabilities: bool) -> bytes:
        """Answer a request.

        Args:
            content: Its body.
            media: Type of the body.
            with_probabilities: Of all classes, not of the predicted one alone.

        Returns:
            JSON.

        Raises:
            Refusal: It cannot be answered.
        """
        model = self.model
        if isinstance(model, PolicyModel):
            return to_json(self._act(read_object(content, media)))
        # All that is kept of a request is kept before it is answered.
        prediction = model.predict(read_rows(content, media), secrets.token_hex(8))
        self.metrics.count(prediction)
        if self.log is not None:
            self.log.add(prediction)
        answer = {
            "model": model.version,
            "request": prediction.request,
            "predicted": prediction.predicted.tolist(),
            "probability": prediction.probability.tolist(),
            # Column, kind and number of values.
            "counted": prediction.counts,
        }
        if with_probabilities:
            answer["classes"] = model.classes.tolist()
            answer["probabilities"] = prediction.probabilities.tolist()
        return to_json(answer)

    def describe(self) -> dict[str, Any]:
        """Say what is served."""
        model = self.model
        return {"model": model.version, "contract": model.terms, "card": model.card}

    def close(self) -> None:
        """Write what the log holds."""
        if self.log is not None:
            self.log.close()

    def _load(self, version: str) -> NetworkModel | PolicyModel:
        with TemporaryDirectory(prefix="simic-serve-") as scratch, loading(version):
            folder = self._source.fetch(version, Path(scratch))
            # Everything is read here: the folder goes.
            is_policy = any(folder.rglob("policy.pt2"))
            return (PolicyModel if is_policy else NetworkModel)(folder, version)

    def _act(self, body: dict[str, Any]) -> dict[str, Any]:
        """Decide for the rows of a step; the memory is that of its session, or stands in it."""
        try:
            step = Step.model_validate(body)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(map(str, problem["loc"])) or "step"
            reason = problem["msg"].removeprefix("Value error, ")
            raise Refusal(422, f"{place}: {reason}") from None
        # Without a session the memory goes to the caller and back.
        if step.session is None:
            answer, memory = self._decide(step, step.memory)
            state = {name: memory[name].tolist() for name in STATE}
            return answer | {"memory": memory | state}
        # Taken out as long as it is used: two steps of a session at once would be one step.
        memory = self._sessions.take(step.session)
        if memory is None and not step.start:
            reason = 'unknown, forgotten or in use; its first step says "start": true'
            raise Refusal(409, f"session {step.session!r}: {reason}")
        try:
            answer, memory = self._decide(step, None if step.start else memory)
        finally:
            # What was refused has changed nothing.
            if memory is not None:
                self._sessions.put(step.session, memory)
        return answer | {"session": step.session}

    def _decide(self, step: Step, memory: Memory | None) -> tuple[dict[str, Any], Memory]:
        """Decide by the policy that the memory is of."""
        version = self.model.version if memory is None else memory.get("model")
        model = next((m for m in (self.model, self._previous) if m.version == version), None)
        if not isinstance(model, PolicyModel):
            raise Refusal(409, f"memory of version {version}: not served any more; begin anew")
        answer, memory = model.act(step, memory)
        self.metrics.rows.inc(len(answer["actions"]))
        return answer, memory
