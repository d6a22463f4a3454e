"""What an XLA program communicates, and what computation hides of it (`weft estimate hlo`)."""

from transport.estimate.hlo.program import Collective, Program, Totals, program_of
from transport.estimate.hlo.text import HloError, Module, parse, read

__all__ = ["Collective", "HloError", "Module", "Program", "Totals", "parse", "program_of", "read"]
