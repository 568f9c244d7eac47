// The bench's twelve kernels in OpenCL C, for PoCL: the same work, split into the same groups.

kernel void saxpy(int n, float a, global const float *x, global float *y) {
    int i = get_global_id(0);
    if (i < n) y[i] = a * x[i] + y[i];
}

kernel void matmul(int n, global const float *a, global const float *b, global float *c) {
    local float ta[16][16], tb[16][16];
    int x = get_local_id(0), y = get_local_id(1), column = get_global_id(0), row = get_global_id(1);
    float sum = 0;
    for (int tile = 0; tile < n; tile += 16) {
        ta[y][x] = a[row * n + tile + x];
        tb[y][x] = b[(tile + y) * n + column];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int k = 0; k < 16; k++) sum = fma(ta[y][k], tb[k][x], sum);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    c[row * n + column] = sum;
}

kernel void nbody(int n, float step, global const float4 *from, global float4 *velocity, global float4 *position) {
    local float4 tile[128];
    int i = get_global_id(0), t = get_local_id(0);
    float4 me = from[i];
    float3 pull = 0;
    for (int first = 0; first < n; first += 128) {
        tile[t] = from[first + t];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int k = 0; k < 128; k++) {
            float3 d = tile[k].xyz - me.xyz;
            float inverse = rsqrt(d.x * d.x + d.y * d.y + d.z * d.z + 1e-4f);
            pull += d * (tile[k].w * inverse * inverse * inverse);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    float4 v = velocity[i];
    v.xyz += pull * step;
    velocity[i] = v;
    position[i] = (float4)(me.xyz + v.xyz * step, me.w);
}

kernel void mandelbrot(int width, float left, float top, float pixel, int limit, global uint *out) {
    int column = get_global_id(0), row = get_global_id(1), count = 0;
    float cx = left + pixel * column, cy = top + pixel * row, x = 0, y = 0;
    while (count < limit && x * x + y * y <= 4.0f) {
        float next = x * x - y * y + cx;
        y = 2.0f * x * y + cy;
        x = next;
        count++;
    }
    out[row * width + column] = count;
}

kernel void sum(int n, global const float *in, global float *out) {
    local float part[256];
    int t = get_local_id(0);
    float mine = 0;
    for (int i = get_global_id(0); i < n; i += get_global_size(0)) mine += in[i];
    part[t] = mine;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = 128; s > 0; s /= 2) {
        if (t < s) part[t] += part[t + s];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (t == 0) out[get_group_id(0)] = part[0];
}

kernel void heat(int width, float rate, global const float *in, global float *out) {
    int x = get_global_id(0), y = get_global_id(1), at = y * width + x;
    if (x == 0 || y == 0 || x == width - 1 || y == width - 1)
        out[at] = in[at];
    else
        out[at] = in[at] + rate * (in[at - 1] + in[at + 1] + in[at - width] + in[at + width] - 4.0f * in[at]);
}

kernel void histogram(int n, global const uchar *in, global uint *bins) {
    local uint mine[256];
    int t = get_local_id(0);
    mine[t] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = get_global_id(0); i < n; i += get_global_size(0)) atomic_inc(&mine[in[i]]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (mine[t]) atomic_add(&bins[t], mine[t]);
}

float normal(float d) {
    float k = 1.0f / (1.0f + 0.2316419f * fabs(d));
    float tail = 0.39894228f * exp(-0.5f * d * d) *
                 (k * (0.31938153f + k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
    return d > 0 ? 1.0f - tail : tail;
}

kernel void options(int n, float rate, float volatility, global const float *price, global const float *strike,
                    global const float *years, global float *call, global float *put) {
    int i = get_global_id(0);
    if (i >= n) return;
    float s = price[i], x = strike[i], t = years[i], root = sqrt(t);
    float d1 = (log(s / x) + (rate + 0.5f * volatility * volatility) * t) / (volatility * root);
    float d2 = d1 - volatility * root, discount = exp(-rate * t), n1 = normal(d1), n2 = normal(d2);
    call[i] = s * n1 - x * discount * n2;
    put[i] = x * discount * (1.0f - n2) - s * (1.0f - n1);
}

kernel void fma_f64(int n, double a, double b, global double *values) {
    int i = get_global_id(0);
    if (i >= n) return;
    double x = values[i];
    for (int k = 0; k < 64; k++) x = fma(x, a, b);
    values[i] = x;
}

kernel void fft(global const float *real, global const float *imaginary, global float *out_real, global float *out_imaginary,
                global const float *root_real, global const float *root_imaginary) {
    local float re[2][1024], im[2][1024];
    int t = get_local_id(0), first = get_group_id(0) * 1024, from = 0;
    for (int i = t; i < 1024; i += 512) {
        re[0][i] = real[first + i];
        im[0][i] = imaginary[first + i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_size = 1, step = 512; half_size < 1024; half_size *= 2, step /= 2) {
        int k = t & (half_size - 1), to = 2 * t - k, other = 1 - from;
        float wr = root_real[k * step], wi = root_imaginary[k * step];
        float cr = re[from][t + 512] * wr - im[from][t + 512] * wi, ci = re[from][t + 512] * wi + im[from][t + 512] * wr;
        re[other][to] = re[from][t] + cr;
        im[other][to] = im[from][t] + ci;
        re[other][to + half_size] = re[from][t] - cr;
        im[other][to + half_size] = im[from][t] - ci;
        from = other;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = t; i < 1024; i += 512) {
        out_real[first + i] = re[from][i];
        out_imaginary[first + i] = im[from][i];
    }
}

kernel void sort(global uint *values) {
    local uint s[1024];
    int t = get_local_id(0), first = get_group_id(0) * 1024;
    s[t] = values[first + t];
    s[t + 512] = values[first + t + 512];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int size = 2; size <= 1024; size *= 2)
        for (int j = size / 2; j > 0; j /= 2) {
            int i = 2 * t - (t & (j - 1));
            uint a = s[i], b = s[i + j];
            if ((a > b) == ((i & size) == 0)) {
                s[i] = b;
                s[i + j] = a;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    values[first + t] = s[t];
    values[first + t + 512] = s[t + 512];
}

kernel void conv2d(int width, global const float *in, global const float *filter, global float *out) {
    int x = get_global_id(0), y = get_global_id(1);
    float sum = 0;
    for (int v = 0; v < 5; v++)
        for (int u = 0; u < 5; u++) sum = fma(filter[5 * v + u], in[(y + v) * (width + 4) + x + u], sum);
    out[y * width + x] = sum;
}
