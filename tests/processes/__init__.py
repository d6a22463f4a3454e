"""Random schedules of real processes, and what must hold when peace is made."""
