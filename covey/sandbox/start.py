"""Starts a zygote in a Python that does not have Covey. Until this script has added Covey, it imports nothing else.

Only Covey's own folder is added. The packages next to it belong to a different Python and must not be imported here.
Usage: `python -P -s start.py COVEY CONTROL GUARD`, with the folder of the package and the arguments of the zygote.
"""

import importlib.util
import runpy
import sys
from pathlib import Path


def add_package(folder: Path) -> None:
    """Import the package in a folder under the folder's name. Raises ImportError if the folder is not a package."""
    spec = importlib.util.spec_from_file_location(
        folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"the folder {folder} is not a Python package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[folder.name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    add_package(Path(sys.argv[1]))
    del sys.argv[1]
    runpy.run_module("covey.sandbox.zygote", run_name="__main__", alter_sys=True)
