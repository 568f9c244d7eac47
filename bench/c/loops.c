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

float sum(int n, const float *in) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += in[i];
    return sum;
}

static float normal(float d) {
    float k = 1.0f / (1.0f + 0.2316419f * fabsf(d));
    float tail = 0.39894228f * expf(-0.5f * d * d) *
                 (k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
    return d > 0 ? 1.0f - tail : tail;
}

void black_scholes(int n, const float *price, const float *strike, const float *years, float rate, float volatility,
                   float *call, float *put) {
    for (int i = 0; i < n; i++) {
        float s = price[i], x = strike[i], t = years[i], root = sqrtf(t);
        float d1 = (logf(s / x) + (rate + 0.5f * volatility * volatility) * t) / (volatility * root);
        float d2 = d1 - volatility * root;
        float discount = expf(-rate * t), n1 = normal(d1), n2 = normal(d2);
        call[i] = s * n1 - x * discount * n2;
        put[i] = x * discount * (1.0f - n2) - s * (1.0f - n1);
    }
}

void fma_f64(int n, double a, double b, double *values) {
    for (int i = 0; i < n; i++) {
        double x = values[i];
        for (int k = 0; k < 64; k++) x = x * a + b;
        values[i] = x;
    }
}

// The arrays may not overlap, which the kernel's language promises as little as C does: C gets the promise.
void heat(int width, int height, float rate, const float *restrict in, float *restrict out) {
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            int at = y * width + x;
            if (x == 0 || y == 0 || x == width - 1 || y == height - 1)
                out[at] = in[at];
            else
                out[at] = in[at] + rate * (in[at - 1] + in[at + 1] + in[at - width] + in[at + width] - 4.0f * in[at]);
        }
}

void histogram(int n, const unsigned char *in, unsigned *bins) {
    for (int i = 0; i < n; i++) bins[in[i]]++;
}

// Each 1,024 numbers on their own, by Stockham's method, as the kernel does it.
void fft(int count, const float *real, const float *imaginary, float *out_real, float *out_imaginary,
         const float *root_real, const float *root_imaginary) {
    float re[2][1024], im[2][1024];
    for (int first = 0; first < count; first += 1024) {
        for (int i = 0; i < 1024; i++) {
            re[0][i] = real[first + i];
            im[0][i] = imaginary[first + i];
        }
        int from = 0;
        for (int half = 1, step = 512; half < 1024; half *= 2, step /= 2) {
            const float *fr = re[from], *fi = im[from];
            float *tr = re[1 - from], *ti = im[1 - from];
            for (int group = 0; group < step; group++)
                for (int k = 0; k < half; k++) {
                    int t = group * half + k, to = 2 * t - k;
                    float wr = root_real[k * step], wi = root_imaginary[k * step];
                    float cr = fr[t + 512] * wr - fi[t + 512] * wi, ci = fr[t + 512] * wi + fi[t + 512] * wr;
                    tr[to] = fr[t] + cr;
                    ti[to] = fi[t] + ci;
                    tr[to + half] = fr[t] - cr;
                    ti[to + half] = fi[t] - ci;
                }
            from = 1 - from;
        }
        for (int i = 0; i < 1024; i++) {
            out_real[first + i] = re[from][i];
            out_imaginary[first + i] = im[from][i];
        }
    }
}

// Each 1,024 numbers on their own, by the kernel's network.
void sort(int count, unsigned *values) {
    for (int first = 0; first < count; first += 1024) {
        unsigned *s = values + first;
        for (int size = 2; size <= 1024; size *= 2)
            for (int j = size / 2; j > 0; j /= 2)
                for (int group = 0; group < 1024; group += 2 * j)
                    for (int i = group; i < group + j; i++) {
                        unsigned a = s[i], b = s[i + j], low = a < b ? a : b, high = a < b ? b : a;
                        int up = (i & size) == 0;
                        s[i] = up ? low : high;
                        s[i + j] = up ? high : low;
                    }
    }
}

void conv2d(int width, int height, const float *restrict in, const float *restrict filter, float *restrict out) {
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            float sum = 0;
            for (int v = 0; v < 5; v++)
                for (int u = 0; u < 5; u++) sum += filter[5 * v + u] * in[(y + v) * (width + 4) + x + u];
            out[y * width + x] = sum;
        }
}
