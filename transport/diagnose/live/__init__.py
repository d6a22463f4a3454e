"""Diagnoses a running job: each host summarizes its traces, and one of them judges all of them."""
