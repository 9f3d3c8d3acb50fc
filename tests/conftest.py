"""Eight virtual CPU devices for every test, and no more threads than two cores deserve."""

import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax

jax.config.update("jax_num_cpu_devices", 8)

# The same small programs are compiled by many tests; a cache for this session halves the suite. A directory of its own,
# since programs of another machine must not be loaded.
_CACHE = tempfile.TemporaryDirectory(prefix="poise-test-cache-")
jax.config.update("jax_compilation_cache_dir", _CACHE.name)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
