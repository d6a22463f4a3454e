"""Policies of weft: what a policy's file imports, and the shipped policies by family."""

from congestion.api import (
    ECN,
    FAMILIES,
    GOOD,
    MAX_PATHS,
    NACK,
    TIMEOUT,
    Policy,
    credit_policy,
    loss_policy,
    path_policy,
    record,
    window_policy,
)
from congestion.promises import Promises

__all__ = [
    "ECN",
    "FAMILIES",
    "GOOD",
    "MAX_PATHS",
    "NACK",
    "TIMEOUT",
    "Policy",
    "Promises",
    "credit_policy",
    "loss_policy",
    "path_policy",
    "record",
    "window_policy",
]
