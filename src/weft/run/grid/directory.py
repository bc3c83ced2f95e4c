"""`RunDirectory`: what a run is, on disk, so that it can go on after a crash.

The plan and where everything lies are written before the outputs are made, a mark behind that, and
the record behind the last task. What has been done is not written down: the shards that are there
say it, if the mark is there; without it they may be those of somebody else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.lang.operator import OPERATORS, Library
from weft.plan import Plan
from weft.run.grid.places import Output

VERSION = 1


@dataclass(frozen=True)
class Job:
    """What a run reads, writes and runs on, as it was said: all that it needs beside its plan."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, Output]
    on: str = "ray"
    workers: int | None = None
    memory: int | None = None
    modules: tuple[str, ...] = field(default=())
    """Modules that add operators."""


@dataclass(frozen=True)
class RunDirectory:
    """A folder with a plan, a job and, in the end, a record.

    >>> RunDirectory(Path("blur.run")).is_begun
    False
    """

    path: Path

    @property
    def record(self) -> Path:
        """The file of the record."""
        return self.path / "run.json"

    @property
    def _mark(self) -> Path:
        return self.path / "outputs.made"

    @property
    def is_begun(self) -> bool:
        """Whether there is a run that has not come to its end."""
        return (self.path / "job.json").exists() and not self.record.exists()

    @property
    def has_outputs(self) -> bool:
        """Whether the outputs of the run were made, so that shards in them are its own."""
        return self._mark.exists()

    def begin(self, plan: Plan, job: Job) -> None:
        """Write down what is to be done; what was there before is gone."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise WeftError(f"{self.path} is a file, and no folder for a run") from None
        self._mark.unlink(missing_ok=True)
        self.record.unlink(missing_ok=True)
        self._write("plan.json", plan.to_json())
        self._write("job.json", json.dumps({"version": VERSION, **asdict(job)}, indent=1))

    def mark(self) -> None:
        """Write down that the outputs are made."""
        self._mark.touch()

    def finish(self, record: str) -> None:
        """Write down what came of it."""
        self._write("run.json", record)

    def abandon(self) -> None:
        """Forget a run that was refused before it did anything."""
        for name in ("job.json", "plan.json"):
            (self.path / name).unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def _write(self, name: str, text: str) -> None:
        draft = self.path / f"{name}.draft"
        draft.write_text(text + "\n", encoding="utf-8")
        os.replace(draft, self.path / name)

    def job(self) -> Job:
        """What is to be done."""
        data = self._read("job.json")
        if data.get("version") != VERSION:
            raise WeftError(
                f"{self.path / 'job.json'} has version {data.get('version')!r}, not {VERSION}"
            )
        try:
            outputs = {name: Output(**said) for name, said in data["outputs"].items()}
            modules = tuple(data["modules"])
            return Job(
                data["inputs"], outputs, data["on"], data["workers"], data["memory"], modules
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise WeftError(f"{self.path / 'job.json'} says no run: {error}") from None

    def plan(self, operators: Library = OPERATORS) -> Plan:
        """The plan."""
        return Plan.from_json(self._text("plan.json"), operators)

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(self._text(name))
        except json.JSONDecodeError as error:
            raise WeftError(f"{self.path / name} is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise WeftError(f"{self.path / name} is no JSON object")
        return found

    def _text(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise WeftError(
                f"there is no run in {self.path}",
                hint="a run begins with: weft run plan.json --input x=in.zarr --output y=out.zarr",
            ) from None
