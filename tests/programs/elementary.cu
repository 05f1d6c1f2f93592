// One operation an element: what a CPU and a GPU may round differently.
extern "C" __global__ void elementary(const float* x, const float* y, const float* z, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = OPERATION;
}
