"""Differential fuzzers: what several readers or writers do is compared, for as long as one likes."""
