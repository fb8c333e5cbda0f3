"""Run DVC's command line with the params of another file in place of those of params.yaml, which stays as it is.

DVC records params as params.yaml has them when a stage ends, and has no option for those that the stage ran with
(dvc #11058). Run as a script: FILE ARGUMENTS.
"""

import sys
from typing import Any

from dvc.cli import main
from dvc.dependency import param

if __name__ == "__main__":
    _, file, *arguments = sys.argv
    load = param.load_path

    def load_file(path: str, filesystem: Any, **options: Any) -> Any:
        """Load the file, whatever the path of the params in dvc.yaml."""
        return load(file, filesystem, **options)

    param.load_path = load_file
    sys.exit(main(arguments))
