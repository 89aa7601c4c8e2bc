"""The shape of the package, measured: `make count` prints lines of code, `tests/test_structure.py` holds the limits.

A line of code is one that has a token of code on it: no blank line, no comment, no docstring (of a module, class or
function, or the string below a constant that describes it).
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
CORE = ("language", "compiler", "oracle", "errors", "source")
"""The compiler core: what is neither a library, nor the runtime, nor the part for accelerators."""

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@cache
def _tree(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def code_lines(text: str) -> int:
    """How many lines of a file are code.

    >>> code_lines('"About."' + "\\n\\nX = 1  # why\\n" + '"What X is."' + "\\n# alone\\ny = (\\n    2\\n)\\n")
    4
    """
    counted: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            counted.update(range(token.start[0], token.end[0] + 1))
    for statement in _tree(text):
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            counted.difference_update(range(value.lineno, (value.end_lineno or 0) + 1))
    return len(counted)


def modules() -> dict[str, Path]:
    """The modules of the package by their dotted names."""
    found = {}
    for path in sorted((ROOT / "polyrhythm").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def counts() -> dict[str, tuple[int, int]]:
    """Lines of code and number of files, by package (those of the compiler and its backends one by one)."""
    found: dict[str, tuple[int, int]] = {}
    for name, path in modules().items():
        parts = name.split(".")[1:]
        if path.name != "__init__.py":
            parts = parts[:-1] or parts
        deep = 3 if parts[:2] == ["compiler", "backends"] else 2 if parts[:1] == ["compiler"] else 1
        package = ".".join(parts[:deep]) or "polyrhythm"
        lines, files = found.get(package, (0, 0))
        found[package] = lines + code_lines(path.read_text()), files + 1
    return found


def core_lines() -> int:
    """Lines of code of the compiler core."""
    return sum(lines for name, (lines, _) in counts().items() if name.split(".")[0] in CORE)


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports, inside functions too, but not for types alone."""
    tree = _tree(path.read_text())
    typing = {
        inner
        for node in tree
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in tree:
        if node in typing:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.update(name for name in [inner if inner in known else str(node.module)] if name in known)
    return found


def cycles() -> Iterator[list[str]]:
    """Groups of modules each of which imports every other, directly or not."""
    known = modules()
    direct = {name: imports(path, known) - {name} for name, path in known.items()}
    reached: dict[str, set[str]] = {}
    for name in direct:
        seen: set[str] = set()
        ahead = list(direct[name])
        while ahead:
            module = ahead.pop()
            if module not in seen:
                seen.add(module)
                ahead.extend(direct[module])
        reached[name] = seen
    told: set[str] = set()
    for name, seen in reached.items():
        if name in seen and name not in told:
            group = sorted(other for other in seen if name in reached[other])
            told.update(group)
            yield group


def main() -> None:
    """Print the table."""
    found = counts()
    for name, (lines, files) in sorted(found.items()):
        print(f"{lines:7,}  {files:4} files  {name}{'' if name.split('.')[0] in CORE else '  (outside the core)'}")
    print(f"{core_lines():7,}  compiler core: {', '.join(CORE)}")
    print(f"{sum(lines for lines, _ in found.values()):7,}  the package")


if __name__ == "__main__":
    main()
