"""Runs the `weft` command as `python -m transport`, also from a checkout without installing it."""

from transport.cli import main

main()
