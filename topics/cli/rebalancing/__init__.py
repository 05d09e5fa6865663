"""`topics shards rebalance`: what goes where (plan.py), and bringing it there (move.py)."""
