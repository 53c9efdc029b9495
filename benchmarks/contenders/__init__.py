"""What competes: one module a contender, run by `harness.worker` in its own process.

Modules for peers import that peer, so they are importable in its environment only.
"""
