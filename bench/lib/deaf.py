"""Makes the fork server, and so every worker forked from it, ignore Ctrl-C.

Only the fork server imports this module. Ctrl-C is handled by the experiment's process.
"""

import signal

signal.signal(signal.SIGINT, signal.SIG_IGN)
