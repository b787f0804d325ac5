"""Parts of `bench_router.py`."""
