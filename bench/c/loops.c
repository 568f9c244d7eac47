// What `bench ptx` measures the engine against: the same computations as plain C loops, one thread.
// Signatures are mirrored in bench/src/bin/ptx/native.rs.
#include <math.h>

void saxpy(int n, float a, const float *x, float *y) {
    for (int i = 0; i < n; i++) y[i] = a * x[i] + y[i];
}

void matmul(int n, const float *a, const float *b, float *c) {
    for (int row = 0; row < n; row++)
        for (int column = 0; column < n; column++) {
            float sum = 0;
            for (int k = 0; k < n; k++) sum += a[row * n + k] * b[k * n + column];
            c[row * n + column] = sum;
        }
}

void nbody(int n, float step, const float (*from)[4], float (*velocity)[4], float (*position)[4]) {
    for (int i = 0; i < n; i++) {
        float ax = 0, ay = 0, az = 0;
        for (int k = 0; k < n; k++) {
            float dx = from[k][0] - from[i][0], dy = from[k][1] - from[i][1], dz = from[k][2] - from[i][2];
            float inverse = 1.0f / sqrtf(dx * dx + dy * dy + dz * dz + 1e-4f);
            float pull = from[k][3] * inverse * inverse * inverse;
            ax += dx * pull;
            ay += dy * pull;
            az += dz * pull;
        }
        velocity[i][0] += ax * step;
        velocity[i][1] += ay * step;
        velocity[i][2] += az * step;
        for (int axis = 0; axis < 3; axis++) position[i][axis] = from[i][axis] + velocity[i][axis] * step;
        position[i][3] = from[i][3];
    }
}

void mandelbrot(int width, int height, float left, float top, float pixel, int limit, unsigned *out) {
    for (int row = 0; row < height; row++)
        for (int column = 0; column < width; column++) {
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
}
