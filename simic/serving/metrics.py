"""Count what is served, for Prometheus."""

from collections import Counter as Counted
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from simic.serving.networks import NetworkModel, Prediction
from simic.serving.policies import PolicyModel

# Seconds, from a row to thousands of them.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """Metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        # Not the registry of the process: tests run several servers in one.
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        gauge = partial(Gauge, registry=self._registry)
        self.seconds = Histogram(
            "simic_request_seconds", "Of a prediction", registry=self._registry, buckets=BUCKETS
        )
        self.requests = counter("simic_requests", "For predictions", ["status"])
        self.rows = counter("simic_rows", "Predicted or decided")
        self.failures = counter("simic_refresh_failures", "Looks for a newer version that failed")
        self.lost_rows = counter("simic_log_lost_rows", "That could not be logged")
        # By class and column, of which a contract has a limited number.
        self._classes = counter("simic_predicted", "Rows by their class", ["label"])
        kinds = "Missing, unseen levels or out of range"
        self._counts = counter("simic_values", kinds, ["column", "kind"])
        index = "Population stability index of the newest rows against training"
        # What is true when somebody looks.
        self._psi = gauge("simic_drift_psi", index, ["column"])
        self._window = gauge("simic_drift_rows", "Rows in that index")
        self._model = gauge("simic_model", "1 for what is served", ["version"])

    def count(self, prediction: Prediction) -> None:
        """Count the rows of a request."""
        self.rows.inc(len(prediction.coded))
        for name, rows in Counted(prediction.predicted.tolist()).items():
            self._classes.labels(name).inc(rows)
        for column, kind, rows in prediction.counts:
            self._counts.labels(column, kind).inc(rows)

    def page(self, model: NetworkModel | PolicyModel) -> bytes:
        """Write all metrics in Prometheus's format.

        Args:
            model: What is served now.
        """
        self._model.clear()
        self._model.labels(model.version).set(1)
        # Columns of another model are gone.
        self._psi.clear()
        if isinstance(model, NetworkModel):
            self._window.set(model.drift.rows)
            for column, index in model.drift.psi().items():
                self._psi.labels(column).set(index)
        return generate_latest(self._registry)
