"""Register the readers of tasks by name. Users add their own in a file of theirs: examples/extensions/moons.py."""

from collections.abc import Callable
from pathlib import Path

from simic import registry
from simic.data.published import read_cifar10, read_mnist
from simic.data.sources import Source, read_bundled, read_npz, read_text
from simic.errors import SimicError
from simic.params import Prepare

# Reads all raw samples of a task, given its params, rng_seed and the folder of files; of text, as many as
# asked for.
Reader = Callable[[Prepare, int, Path], Source]
TASKS: dict[str, Reader] = {}


def task(name: str) -> Callable[[Reader], Reader]:
    """Register a reader (decorator); SimicError where the name is taken."""

    def register(reader: Reader) -> Reader:
        if name in TASKS:
            raise SimicError(f"task {name!r} is registered already")
        TASKS[name] = reader
        registry.add(registry.TASK, name)
        return reader

    return register


task("digits")(lambda params, rng_seed, data_dir: read_bundled("digits"))
task("mnist")(lambda params, rng_seed, data_dir: read_mnist(data_dir))
task("cifar10")(lambda params, rng_seed, data_dir: read_cifar10(data_dir))
# That a source is named where one is needed is checked where params are.
task("text")(lambda params, rng_seed, data_dir: read_text(data_dir, params, rng_seed))
task("npz")(lambda params, rng_seed, data_dir: read_npz(data_dir, params.source or ""))
