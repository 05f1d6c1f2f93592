"""From one kernel language to another: the skeleton of a port, and both sides by step."""
