"""The `weft` command: one module for each subcommand."""

from weft.cli.main import main

__all__ = ["main"]
