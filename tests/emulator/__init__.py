"""The CUDA emulator. Needs a C++ compiler and CUDA's headers."""
