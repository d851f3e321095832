"""Builds: compilers found, commands, the cache, diagnostics. `build.compile_program` is the way in."""
