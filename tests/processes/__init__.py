"""Tests weft with random fault schedules of real processes, and checks the state afterwards."""
