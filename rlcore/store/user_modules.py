"""The user's modules and files: found without running them, and why one cannot be imported."""

import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from schemas.errors import UserError, did_you_mean
from schemas.names import is_file, split_function

_OURS = [Path(__file__).parents[2] / name for name in ("flows", "tasks", "rlcore", "schemas")]
_OS = (os.__file__, "<frozen os>")  # whose environ raises KeyError for a variable that is not set
_INSTALLED = tuple(
    {
        str(Path(sysconfig.get_path(name)).resolve()) + os.sep
        for name in ("stdlib", "platlib", "purelib")
    }
)


def find_module(name: str) -> ModuleSpec | None:
    """Return the spec of the module ``name`` (dotted, or the path of a file), or None when there
    is none.

    Unlike ``importlib.util.find_spec`` it imports no package on the way, so nothing of the user's
    runs.
    """
    if is_file(name):
        return _spec_of_file(Path(name).expanduser().resolve())
    if name in sys.modules:
        return sys.modules[name].__spec__
    places: list[str] | None = None  # None: sys.path
    spec = None
    reached: list[str] = []
    for part in name.split("."):
        if reached and places is None:  # a module, which holds no others
            return None
        reached.append(part)
        spec = _find(".".join(reached), places) if part else None
        if spec is None:
            return None
        found = spec.submodule_search_locations
        places = None if found is None else list(found)
    return spec


def _spec_of_file(file: Path) -> ModuleSpec | None:
    """Return the spec of the file's module, under a name that no installed module has."""
    if not file.is_file():
        return None
    digest = hashlib.sha256(os.fsencode(file)).hexdigest()[:8]
    return importlib.util.spec_from_file_location(f"{file.stem}_{digest}", file)


def _find(name: str, places: list[str] | None) -> ModuleSpec | None:
    try:
        found = (finder.find_spec(name, places) for finder in sys.meta_path)
        return next((spec for spec in found if spec is not None), None)
    except KeyError:  # a folder without __init__.py in a package that is not imported
        spec = ModuleSpec(name, None, is_package=True)
        folders = [Path(place, name.rpartition(".")[2]) for place in places or ()]
        spec.submodule_search_locations = [str(folder) for folder in folders if folder.is_dir()]
        return spec


def check_module(name: str, path: str) -> None:
    """Raise UserError when ``name`` is neither 'package.module:function' nor
    'path/to/file.py:function', or there is no such module or file.

    ``path``: where the recipe names it. Nothing of the user's is imported.
    """
    module, function = split_function(name)
    if not module or not function.isidentifier():
        raise UserError(
            f"{path} = {name!r} must be written 'package.module:function' or"
            " 'path/to/file.py:function'"
        )
    if find_module(module) is None:
        if is_file(module):
            where = Path(module).expanduser().absolute()
            raise UserError(
                f"{path} = {name!r}: there is no file {where}; a relative path is one from the"
                " recipe's folder, or from where the command was started"
            )
        raise UserError(
            f"{path} = {name!r}: there is no module {module!r}; "
            "put its folder on PYTHONPATH or install its package"
        )


def import_module(module: str, name: str, path: str) -> ModuleType:
    """Return the user's module, imported here. Raises UserError naming what failed, and where.

    A file is imported under a unique name, and can import the files beside it.
    """
    try:
        return _import_file(module) if is_file(module) else importlib.import_module(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(import_failure(error, name, path)) from error


def _import_file(file: str) -> ModuleType:
    spec = find_module(file)
    if spec is None or spec.loader is None or spec.origin is None:
        raise FileNotFoundError(file)
    if spec.name in sys.modules:
        return sys.modules[spec.name]
    folder = str(Path(spec.origin).parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that no file there hides an installed module
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def import_failure(error: BaseException, name: str, path: str) -> str:
    """Return the sentence on an import of the user's module that raised ``error``."""
    place, remedy = "", "fix the module"
    if isinstance(error, SyntaxError):
        place = f" ({_short(error.filename)} line {error.lineno})"
        what = error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        if isinstance(error, KeyError) and frames and frames[-1].filename in _OS:
            remedy = "name the variable in reward.env and set it, or read it inside the function"
        if isinstance(error, ModuleNotFoundError):
            remedy = "install what it imports, or put its folder on PYTHONPATH"
        named = [frame for frame in frames if not _is_machinery(frame.filename)]
        # The user's line, also where it calls into a package or sys.exit is replaced, as by wandb.
        shown = [frame for frame in named if not _is_installed(frame.filename)] or named
        if shown:
            place = f" ({_short(shown[-1].filename)} line {shown[-1].lineno})"
        what = " ".join(str(error).split())
    what = f"{type(error).__name__}: {what[:300]}" if what else type(error).__name__
    return f"{path} = {name!r} cannot be imported: {what}{place}; {remedy}"


def raised_at(error: BaseException) -> str:
    """Return the last line of the user's own files that ``error`` came through, as " (FILE line
    N)"; "" where it came through none."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if _is_theirs(frame.filename)]
    return f" ({_short(theirs[-1].filename)} line {theirs[-1].lineno})" if theirs else ""


def _is_theirs(filename: str) -> bool:
    machinery = filename.startswith("<") or _is_installed(filename)
    return not machinery and not any(Path(filename).is_relative_to(folder) for folder in _OURS)


def import_function(name: str, path: str) -> Callable[..., Any]:
    """Return the user's function ``name``, imported here. Raises UserError as ``import_module``,
    and when the module has none of that name, or something that cannot be called."""
    module, function = split_function(name)
    names = vars(import_module(module, name, path))
    found = names.get(function)
    if callable(found):
        return found
    if function in names:
        kind = type(found).__name__
        raise UserError(f"{path} = {name!r} is of type {kind}, not a function; name a function")
    near = did_you_mean(function, names)
    raise UserError(f"{path} = {name!r}: {module} has no {function}(){near}")


def _is_machinery(filename: str) -> bool:
    """Whether a frame belongs to Python's import, or to what reports its errors."""
    return filename.startswith("<") or filename in (__file__, importlib.__file__, *_OS)


def _is_installed(filename: str) -> bool:
    """Whether a frame belongs to Python's library or to an installed package."""
    return str(Path(filename).resolve()).startswith(_INSTALLED)


def _short(filename: str | None) -> str:
    return Path(filename or "unknown file").name
