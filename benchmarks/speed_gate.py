"""Watch the speed of hosts in CI: operations of a few minibatches, the same on every machine.

    python -m benchmarks.speed_gate

Most of a small host's time is spent issuing operations. How fast ours is beside plain loops depends on the machine and
is measured by ``benchmarks.population``.
"""

from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import page
from benchmarks.population import CASES, ours
from simic import params
from simic.training import machine

RESULT = Path("benchmarks/results/speed_gate.json")
# Hosts of a case of ``benchmarks.population``. Large ones have no seeds; small ones have seeds of every kind.
GATES = {"reference": 4, "small": 32}
WITH_SEEDS = ("small",)


class Counter(TorchDispatchMode):
    """Count the operations that reach a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


def operations(case: str) -> int:
    """Count our operations in a few minibatches, forward, backward and step."""
    device = machine.configure(params.Runtime(device="cpu"))
    work = ours(CASES[case], GATES[case], "auto", device=device, seeds=case in WITH_SEEDS)
    work()
    with Counter() as counter:
        work()
    return counter.operations


def main() -> None:
    given = page.parser(__doc__, RESULT).parse_args()
    found = {case: operations(case) for case in GATES}
    print(found)
    page.write_result(given.out, {"operations": found})


if __name__ == "__main__":
    main()
