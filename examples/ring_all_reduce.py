"""A ring all-reduce with the Python API. It is in the wheel: transport/examples/ring.py.

Run it: python -m examples.ring_all_reduce --with cupy
"""

from transport.examples.ring import main

if __name__ == "__main__":
    main()
