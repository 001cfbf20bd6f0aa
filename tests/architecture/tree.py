"""The source tree as the rules' tests read it: files, imports and definitions."""

import ast
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
ROLES = ("coordinator", "worker", "validator", "trainer")
PACKAGES = ("covey", *ROLES)
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in SOURCES]
BENCHMARKS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "benchmarks").rglob("*.py"))


@cache
def parse(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(), name)


@cache
def list_imports(tree: ast.Module) -> frozenset[tuple[str, bool]]:
    """Return (top-level package, whether at module level) for every import."""
    late = {
        id(node)
        for part in ast.walk(tree)
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(part)
    }
    pairs = set()
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
        for name in names:
            pairs.add((name.partition(".")[0], id(node) not in late))
    return frozenset(pairs)


def spell(node: ast.AST) -> str:
    """Return the name of a call as written, for example a.b.c."""
    if isinstance(node, ast.Attribute):
        return f"{spell(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@cache
def list_arrows() -> frozenset[tuple[str, str]]:
    """Return (importer, imported) for all modules, including imports inside functions and for type checkers."""
    graph = grimp.build_graph(*PACKAGES, "benchmarks")
    return frozenset((one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one))


def find_circles(arrows: frozenset[tuple[str, str]]) -> list[set[str]]:
    """Return the sets of modules that import each other in a circle: strongly connected components of more than one
    module.
    """
    after: dict[str, set[str]] = {}
    for one, other in arrows:
        after.setdefault(one, set()).add(other)

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for other in after.get(waiting.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return seen

    reached = {one: reach(one) for one in after}
    circles: list[set[str]] = []
    for one in sorted(after):
        circle = {other for other in reached[one] if one in reached.get(other, ())}
        if len(circle) > 1 and circle not in circles:
            circles.append(circle)
    return circles


def count_arrows(package: str) -> int:
    """Return the number of arrows between the children of a package. A sub-package counts as one child."""

    def get_child(module: str) -> str:
        return module.split(".")[package.count(".") + 1]

    inside = [pair for pair in list_arrows() if all(each.startswith(f"{package}.") for each in pair)]
    return len({(get_child(one), get_child(other)) for one, other in inside if get_child(one) != get_child(other)})
