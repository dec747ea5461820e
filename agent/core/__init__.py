"""The whole agent in a few pages: goals, actions, the registry, budgets, the loop and what a run leaves."""
