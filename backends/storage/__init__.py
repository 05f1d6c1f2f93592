"""What is written to disk and read again, by this process or another: compiled code, and records.

`folders` chooses and checks the folder, `artefacts` keeps compiled code there with digests, `files` replaces and reads
single files. docs/caches.md says what is trusted.
"""
