// What it declares for kernels is known already; the host's API is not part of the emulator.
#pragma once
