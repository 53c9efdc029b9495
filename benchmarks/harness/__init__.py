"""A small harness: contenders in their own processes, in turn, in one run, in one table.

- `environments`: a virtual environment per peer, created on first use.
- `worker`: what runs inside a contender's process (standard library only).
- `memory`: the peak memory of a piece of work.
- `rounds`: starts the processes and lets them work in turn, A B A B ...
- `table`: Markdown.
- `command_line`: the flags every benchmark has.
"""
