"""An engine on a machine that fails."""

from covey.engines.base import Engine


class Broken:
    """An engine whose replay fails with an error of the machine."""

    def __init__(self, engine: Engine, error: Exception) -> None:
        self._engine, self._error = engine, error

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def replay(self, *_: object, **__: object) -> object:
        raise self._error
