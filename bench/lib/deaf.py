"""Makes the server that workers are forked from, and so every worker, ignore Ctrl-C.

That server alone imports this, before it forks: Ctrl-C is for the experiment.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
