"""`RunDirectory`: what a run is, on disk, so that it can go on after a crash.

The plan and where everything lies are written before the first task, the record behind the last.
What has been done is not written down: the shards that are there say it.
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
    """A folder with a plan, a job and, in the end, a record."""

    path: Path

    @property
    def record(self) -> Path:
        """The file of the record."""
        return self.path / "run.json"

    @property
    def is_begun(self) -> bool:
        """Whether there is a run that has not come to its end."""
        return (self.path / "job.json").exists() and not self.record.exists()

    def begin(self, plan: Plan, job: Job) -> None:
        """Write down what is to be done; what was there before is gone."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.record.unlink(missing_ok=True)
        self._write("plan.json", plan.to_json())
        self._write("job.json", json.dumps({"version": VERSION, **asdict(job)}, indent=1))

    def finish(self, record: str) -> None:
        """Write down what came of it."""
        self._write("run.json", record)

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
        except FileNotFoundError:
            raise WeftError(
                f"there is no run in {self.path}", hint="weft run PLAN --directory begins one"
            ) from None
