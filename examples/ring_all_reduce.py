"""A ring all-reduce with the Python API. It is in the wheel: transport/examples/ring.py.

Run it: python -m examples.ring_all_reduce --with cupy
"""

from transport.ground.interrupts import end_at_interrupt

if __name__ == "__main__":
    end_at_interrupt()  # also while the ring is imported

from transport.examples.ring import main

if __name__ == "__main__":
    main()
