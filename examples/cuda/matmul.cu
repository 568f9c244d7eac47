// matmul: C = A B for row-major single-precision matrices of any shape, in tiles of 16 x 16 held in shared memory.
// Each block computes one tile of C; the barrier separates loading a pair of tiles from using it.
//
// Divvy's own source. The PTX beside it is written from it by `cargo xtask examples`.

constexpr unsigned TILE = 16;

// A is rows x inner, B is inner x columns. Launch with blocks of 16 x 16 threads, one block per tile of C.
extern "C" __global__ void matmul(unsigned rows, unsigned inner, unsigned columns, const float *a, const float *b,
                                  float *c) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];

    unsigned row = blockIdx.y * TILE + threadIdx.y;
    unsigned column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;

    for (unsigned start = 0; start < inner; start += TILE) {
        unsigned a_column = start + threadIdx.x;
        unsigned b_row = start + threadIdx.y;
        // Outside the matrices a tile holds zeros, so the ragged edge needs no second loop.
        tile_a[threadIdx.y][threadIdx.x] = row < rows && a_column < inner ? a[(size_t)row * inner + a_column] : 0.0f;
        tile_b[threadIdx.y][threadIdx.x] =
            b_row < inner && column < columns ? b[(size_t)b_row * columns + column] : 0.0f;
        __syncthreads();
        for (unsigned k = 0; k < TILE; ++k) {
            sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
        }
        __syncthreads();
    }

    if (row < rows && column < columns) {
        c[(size_t)row * columns + column] = sum;
    }
}
