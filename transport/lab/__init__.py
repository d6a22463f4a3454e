"""Builds and controls a multi-path network of namespaces on this host."""

from transport.lab.lab import Counters, Lab
from transport.lab.model import LabError, LabModel, LabModelError, Link, load

__all__ = ["Counters", "Lab", "LabError", "LabModel", "LabModelError", "Link", "load"]
