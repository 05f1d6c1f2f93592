"""The judge judged: wrong kernels that it must reject, right ones that it must not."""
