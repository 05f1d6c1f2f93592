"""What a Python imports as it starts, where a program in the emulator starts it."""
