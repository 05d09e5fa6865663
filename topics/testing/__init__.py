"""Stand-ins for the edges (disk, clock), for tests only: nothing in the product imports this package."""
