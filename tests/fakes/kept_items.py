"""Items of a generator of reasoning-gym that are created once, because creating one takes up to seconds."""

from covey.environments.kinds.reasoning_gym.reasoning_gym import ReasoningGymSource
from covey.environments.kinds.reasoning_gym.reasoning_items import Entry, Items


class KeptItems:
    """Items that are kept once they are created. Scores are those of the generator."""

    def __init__(self, items: Items) -> None:
        self.score_answer = items.score_answer
        self._items = items
        self._kept: dict[int, Entry] = {}

    def __getitem__(self, item: int) -> Entry:
        if item not in self._kept:
            self._kept[item] = self._items[item]
        return self._kept[item]


def keep_items(source: ReasoningGymSource) -> ReasoningGymSource:
    """Return the source, which from now on keeps the items that it has created."""
    source._dataset = KeptItems(source._dataset)
    return source
