"""Named numbers about the pool, such as the last lease and since when tasks are paused."""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from coordinator.db.models import FactRow


class FactQueries:
    """The part of the repository that is about named numbers. They are few, so one query reads all of them."""

    session: Session
    _facts: dict[str, int] | None = None
    """All facts. None until this transaction asks for the first one."""

    def get_fact(self, name: str) -> int:
        """Return a named number, 0 where it was never set."""
        return self._load_facts().get(name, 0)

    def set_fact(self, name: str, value: int) -> None:
        """Give a named number a value."""
        facts = self._load_facts()
        if name in facts:
            self.session.execute(update(FactRow).where(FactRow.name == name).values(value=value))
        else:
            self.session.add(FactRow(name=name, value=value))
            self.session.flush()
        facts[name] = value

    def _load_facts(self) -> dict[str, int]:
        if self._facts is None:
            self._facts = {row[0]: row[1] for row in self.session.execute(select(FactRow.name, FactRow.value))}
        return self._facts
