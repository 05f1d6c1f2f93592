"""The mathematics of every op, one file each, and nothing else: `reference/<op>.py`.

Each file states its formula and holds `<op>` in NumPy float64 (the definition), `torch_<op>` on torch tensors of any
float dtype and device (in float64 it is the truth that kernels are judged by), and further public functions of the
same signature that reach the same answer another way. tests/reference/test_derivations.py compares them all.
"""

if __name__ != "touchstone.reference":
    raise ImportError(
        f"touchstone.reference was imported as {__name__!r}: import it as touchstone.reference, so that no "
        f"module exists under two names"
    )
