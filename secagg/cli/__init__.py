"""The `secagg` command: argument parsing and printing, nothing else."""

from secagg.cli.app import main

__all__ = ["main"]
