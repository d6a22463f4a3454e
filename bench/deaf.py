"""Decides that the server which workers are forked from, and so every worker, ignores Ctrl-C.

Imported by that server alone, before it forks. Never by the experiment, which Ctrl-C is for.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
