"""Random fault schedules of real processes, and the checks after the faults end."""
