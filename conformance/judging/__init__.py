"""One kernel, one trial: the calls, the instruments around them, the comparison, the diagnosis of what is wrong."""
