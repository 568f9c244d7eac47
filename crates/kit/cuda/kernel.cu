// A kernel that nvcc makes a fatbin of; `load.cu` loads it.

extern "C" __global__ void twice(int *values) { values[threadIdx.x] *= 2; }
