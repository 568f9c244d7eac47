// nvrtc: --gpu-architecture=compute_80
// Iterations until escape, per pixel: every lane leaves the loop on its own.
extern "C" __global__ void mandelbrot(unsigned *out, int width, int height, float left, float top, float pixel, int limit) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= width || row >= height) return;
    float cx = left + pixel * column, cy = top + pixel * row, x = 0, y = 0;
    int count = 0;
    while (count < limit && x * x + y * y <= 4.0f) {
        float next = x * x - y * y + cx;
        y = 2.0f * x * y + cy;
        x = next;
        count++;
    }
    out[row * width + column] = count;
}
