"""Tests of transport/plan: probing, assigning, plan files, watching."""
