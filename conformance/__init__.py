"""The judge: says which kernels are right, and how far each is from its error budget.

    from touchstone import check
    report = check("softmax", my_softmax, device="cpu", level="quick")
    print(report)

One room per stage, and imports point one way; docs/design.md draws the floors and tests/test_repository.py holds them.
"""

if __name__ != "touchstone.conformance":
    raise ImportError(
        f"touchstone.conformance was imported as {__name__!r}: import it as touchstone.conformance, so that no "
        f"module exists under two names"
    )
