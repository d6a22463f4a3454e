"""The `weft` command: the entry point of the console script, and of `python -m transport`."""

import sys

INTERRUPTED = 130  # exit status after Ctrl-C, as in a shell


def main() -> None:
    """Runs the command. Ctrl-C while its modules are imported ends it, too."""
    try:
        from transport.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
