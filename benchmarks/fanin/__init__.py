"""The parts of `bench_fanin.py`: each system with its workers and its driver, and a look at CPU time."""
