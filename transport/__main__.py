"""`python -m transport`: the command weft, from a checkout in which it is not installed."""

from transport.cli import main

main()
