"""`python -m tests.swarm`: runs random scenarios and checks invariants (`make swarm`)."""

from tests.swarm.command import main

if __name__ == "__main__":
    main()
