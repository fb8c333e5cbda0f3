"""Name the callback by which long work tells how far it is."""

from collections.abc import Callable

# ``progress(what, done, total)``: of ``what`` so many of ``total`` are done.
Progress = Callable[[str, int, int], None]
