"""The judge's own tests, judged: small changes to its code, and which of them no test notices.

`python -m tests.mutation --sample 300 --out FOLDER` draws mutants, runs of each the tests that execute the changed
statement, the cheapest first, until one fails, and writes mutation.json and mutation.md.
"""
