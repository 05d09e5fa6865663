"""Style rules that can fail: sizes, names, docstrings, leftovers, and docs that name real files."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "topics").rglob("*.py"))

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
VAGUE_NAMES = {"utils", "helpers", "common", "base", "manager"}
LEFTOVER = re.compile(r"\b(?:TO" r"DO|FIX" r"ME)\b")
# An absolute path below somebody's home or work folder; a URL path that merely contains such a word is fine.
MACHINE_PATH = re.compile(r"(?<![\w.:>})\]-])/(?:work|home|Users|root)/")
IN_BACKTICKS = re.compile(r"`([^`\s]+)`")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def project_files() -> list[Path]:
    """Tracked files and the ones about to be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = {ROOT / name for name in listed.decode().split("\0") if name}
    return sorted(path for path in paths if path.is_file())


def texts() -> Iterator[tuple[Path, str]]:
    for path in project_files():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary fixture


def lines_matching(pattern: re.Pattern[str], path: Path, text: str) -> list[str]:
    return [
        f"{name_of(path)}:{n}: {line.strip()}" for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)
    ]


def test_no_module_is_long():
    sizes = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: size for name, size in sizes.items() if size > FILE_LINES_MAX} == {}


def test_no_function_is_long():
    long = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{name_of(path)}:{node.lineno}: {node.name} has {lines} lines")
    assert long == []


def test_every_module_has_a_docstring():
    assert [
        name_of(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ] == []


def test_names_say_what_is_inside():
    vague = [
        name_of(path)
        for path in project_files()
        if path.suffix == ".py" and VAGUE_NAMES & {part.removesuffix(".py") for part in path.relative_to(ROOT).parts}
    ]
    assert vague == []


def test_nothing_is_left_for_later():
    assert [hit for path, text in texts() for hit in lines_matching(LEFTOVER, path, text)] == []


def test_no_machine_path_is_mentioned():
    assert [hit for path, text in texts() for hit in lines_matching(MACHINE_PATH, path, text)] == []


def paths_named_in(text: str) -> set[str]:
    """What stands in backticks and looks like a path in this repository: it ends in .py or has a slash.

    Routes (`/v0/...`), wildcards, placeholders and file names of the data directory are not repository paths.
    """
    named = set()
    for word in IN_BACKTICKS.findall(text):
        word = re.sub(r"(?::\d+|::\w+)$", "", word)
        looks_like_path = word.endswith(".py") or "/" in word
        if looks_like_path and not word.startswith("/") and not re.search(r"[*<>{}$:|…]|://", word):
            named.add(word)
    return named


def test_the_architecture_page_names_files_that_exist():
    page = ROOT / "docs" / "architecture.md"
    named = paths_named_in(page.read_text(encoding="utf-8"))
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("see `topics/core/config.py` and `files.py`", {"topics/core/config.py", "files.py"}),
        ("`topics/shards/wal.py:120` or `topics/shards/wal.py::Writer`", {"topics/shards/wal.py"}),
        ("`/v0/topics`, `TOPICS_SHARDS`, `tests/*.py`, `<data>/wal`", set()),
    ],
)
def test_paths_named_in(text, named):
    assert paths_named_in(text) == named


@pytest.mark.parametrize(
    ("line", "bad"),
    [
        ("cd /" + "work/x", True),
        ("'/" + "home/ann/x'", True),
        ("GET /v0/topics/q/work/", False),
        ("/var/lib/topics/work/", False),
    ],
)
def test_machine_paths_are_told_from_routes(line, bad):
    assert bool(MACHINE_PATH.search(line)) is bad
