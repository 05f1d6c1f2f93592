"""The conformance suite as pytest sees it: options, kernels, compile conformance, benchmarks."""
