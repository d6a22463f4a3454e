"""Graphs of PyTorch and execution traces of Chakra, as programs that `hlo` analyzes."""

from transport.estimate.graphs.files import read
from transport.estimate.graphs.members import Members, members_of

__all__ = ["Members", "members_of", "read"]
