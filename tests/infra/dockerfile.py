"""Reads a Dockerfile, and carries its lines out in a tree of files instead of a container.

The tree is a bare Debian; its commands run in ``chroot`` within a mount namespace of their own, so
that what a ``RUN --mount`` asks for can be mounted and is gone with the command.
"""

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COMMAND_S = 900


@dataclass
class Stage:
    """One ``FROM ... AS name`` with the instructions below it, each (word, rest of the line)."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)


def read(path: Path) -> tuple[dict[str, str], dict[str, Stage]]:
    """Return the global arguments with their defaults, and the stages by name."""
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    stage = None
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = stages[name] = Stage(name, base)
        elif word and stage is not None:
            stage.instructions.append((word, rest.strip()))
        elif word == "ARG":
            name, _, default = rest.partition("=")
            arguments[name] = default
    return arguments, stages


def lineage(stages: Mapping[str, Stage], name: str) -> list[Stage]:
    """Return the stage ``name`` and those that it is built on, the first one first."""
    stage = stages[name]
    return ([] if stage.base not in stages else lineage(stages, stage.base)) + [stage]


def is_sent(path: str, rules: Sequence[str]) -> bool:
    """Return whether a ``.dockerignore`` with these lines lets ``path`` into the build: the last
    rule that matches it or a folder above it decides."""
    sent = True
    parts = path.split("/")
    above = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    for rule in rules:
        pattern = rule.removeprefix("!")
        names = parts if pattern.startswith("**/") else above
        if any(fnmatch.fnmatchcase(name, pattern.removeprefix("**/")) for name in names):
            sent = rule.startswith("!")
    return sent


class Tree:
    """A folder that stands for the file system of an image."""

    def __init__(self, root: Path, mounts: Mapping[str, Path], named: Mapping[str, Path]) -> None:
        """``mounts``: what a ``RUN --mount`` finds at a path of the image; ``named``: what stands
        in its secrets, and is found by the same line."""
        self.root, self._mounts, self._named = root, mounts, named
        self.environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        self.user, self.folder = "0", "/"

    def carry_out(self, stage: Stage, context: Path, ignored: Sequence[str]) -> None:
        """Do what the stage's instructions say."""
        for word, rest in stage.instructions:
            if word == "ENV":
                for pair in shlex.split(rest):
                    name, _, value = pair.partition("=")
                    self.environment[name] = value
            elif word == "RUN":
                self._run(rest)
            elif word == "COPY":
                self._copy(rest.split(), context, ignored)
            elif word == "WORKDIR":
                self.folder = rest
                (self.root / rest.strip("/")).mkdir(parents=True, exist_ok=True)
            elif word == "USER":
                self.user = rest
            else:
                assert word == "CMD", f"{word} is not known here"

    def call(
        self, command: str, *, mounts: Mapping[str, Path] = {}, environment: Mapping[str, str] = {}
    ) -> str:
        """Return what a shell command prints in the tree, as the user that is set.

        ``mounts``: by path of the tree, what of this machine is found there.
        """
        binds = ['mount -t proc proc "$1/proc"', 'mount --rbind /dev "$1/dev"']
        for path, source in mounts.items():
            target = self.root / path.strip("/")
            (target if source.is_dir() else target.parent).mkdir(parents=True, exist_ok=True)
            if source.is_file():
                target.touch()
            binds.append(f"mount --bind {shlex.quote(str(source))} {shlex.quote(str(target))}")
        given = [f"{k}={v}" for k, v in {**self.environment, **environment}.items()]
        inside = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        inside += ["env", "-i", *given, "/bin/sh", "-c", f"cd {self.folder} && {command}"]
        script = " && ".join([*binds, f'exec chroot "$1" {shlex.join(inside)}'])
        done = subprocess.run(
            [*as_root(), "unshare", "--mount", "bash", "-c", script, "bash", str(self.root)],
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
        return done.stdout

    def _run(self, rest: str) -> None:
        mounts: dict[str, Path] = {}
        while rest.startswith("--mount="):
            option, _, rest = rest.partition(" ")
            rest = rest.strip()
            options = {
                name: value for name, _, value in (p.partition("=") for p in option[8:].split(","))
            }
            mounts[options["target"]] = self._mounts[options["target"]]
            if options["type"] == "secret":
                mounts |= self._named
        self.call(rest, mounts=mounts)

    def _copy(self, words: Sequence[str], context: Path, ignored: Sequence[str]) -> None:
        *sources, target = words
        folder = self.root / target.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        names = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=context,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        sent = [name for name in names if is_sent(name, ignored) and (context / name).is_file()]
        for source in sources:
            if source == ".":
                for name in sent:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(context / name, folder / name)
            else:
                assert source in sent, f"COPY {source}: not there, or ignored"
                shutil.copy(context / source, folder / Path(source).name)


def as_root() -> list[str]:
    """Return the command before one that only root may run."""
    return [] if os.geteuid() == 0 else ["sudo", "-n"]
