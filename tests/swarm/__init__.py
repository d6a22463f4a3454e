"""Random simulator scenarios, checked for broken invariants (`make swarm`), and their tests."""
