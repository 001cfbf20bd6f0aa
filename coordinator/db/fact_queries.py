"""Queries about facts, which are named numbers about the pool, such as the number of the last lease."""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from coordinator.db.models import FactRow


class FactQueries:
    """Repository queries about named numbers. One query reads all of them, because there are few."""

    session: Session
    _facts: dict[str, int] | None = None
    """All facts by name. None until this transaction reads the first one."""

    def get_fact(self, name: str) -> int:
        """Return a named number, or 0 if it was never set."""
        return self._load_facts().get(name, 0)

    def set_fact(self, name: str, value: int) -> None:
        """Set a named number."""
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
