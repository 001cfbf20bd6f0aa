"""`covey ui`: pages of the runs in a folder, on this machine."""

from pathlib import Path
from typing import Annotated

import typer

PORT = 8800


def ui(
    folder: Annotated[Path, typer.Argument(help="Folder with folders of covey train, or one of those.")],
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port of 127.0.0.1 that serves the pages. 0 chooses a free one."),
    ] = PORT,
    is_opened: Annotated[bool, typer.Option("--open", help="Open the pages in a browser.")] = False,
) -> None:
    """Show the runs of a folder in a browser until Ctrl-C: curves, completions, settings, and comparisons of runs.

    The pages follow runs that are going on. They only read, and only this machine can reach them.

    Example: `covey ui runs --open`
    """
    import webbrowser
    from threading import Thread

    from covey.runtime.log import configure
    from covey.ui.run_folders import RunFolders
    from covey.ui.ui_application import serve_ui

    def announce(url: str) -> None:
        typer.echo(f"the runs of {folder} are shown at {url}; Ctrl-C ends this")
        if is_opened:  # a browser in the terminal would otherwise keep the server waiting
            Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    configure("ui")
    serve_ui(RunFolders(folder), port=port, on_bound=announce)
