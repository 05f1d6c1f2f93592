"""A process that runs code nobody has read: without network, privileges or neighbours, and nothing of it is left.

`outside.Sandbox` is the judge's end: the folder, the settings, what became of it, its end. `inside.enter` is the
child's: it confines the process that calls it. docs/threat-model.md says what is promised.
"""
