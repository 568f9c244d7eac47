// mandelbrot: how many steps each point of a picture stays within a radius of 2. Neighbouring threads leave the loop
// at different times, so it shows what divergence costs.
//
// Divvy's own source. The PTX beside it is written from it by `cargo xtask examples`.

// steps is height x width. The picture's left edge is at `left`, its top at `top`, a pixel is `pixel` wide and high.
extern "C" __global__ void mandelbrot(unsigned width, unsigned height, float left, float top, float pixel,
                                      unsigned limit, unsigned *steps) {
    unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned row = blockIdx.y * blockDim.y + threadIdx.y;
    if (column >= width || row >= height) {
        return;
    }
    // Where a multiply and an add are fused is written out, so that a CPU can follow step by step.
    float c_re = fmaf(pixel, column, left);
    float c_im = fmaf(-pixel, row, top);
    float re = 0.0f, im = 0.0f, re_squared = 0.0f, im_squared = 0.0f;
    unsigned step = 0;
    while (step < limit && re_squared + im_squared <= 4.0f) {
        im = fmaf(re + re, im, c_im);
        re = re_squared - im_squared + c_re;
        re_squared = re * re;
        im_squared = im * im;
        ++step;
    }
    steps[(size_t)row * width + column] = step;
}
