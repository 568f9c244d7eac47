// nbody: one step of softened gravity among all pairs of bodies. A block walks over the bodies in tiles of its own
// size, each tile loaded once into shared memory.
//
// Divvy's own source. The PTX beside it is written from it by `cargo xtask examples`.

// positions: x, y, z and mass of each body; velocities: x, y, z and nothing. Reads `positions`, writes `moved`, so
// that no body sees another's new place. Dynamic shared memory: one float4 per thread.
extern "C" __global__ void nbody_step(unsigned bodies, float softening_squared, float dt, const float4 *positions,
                                      float4 *moved, float4 *velocities) {
    extern __shared__ float4 tile[];

    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 own = i < bodies ? positions[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float ax = 0.0f, ay = 0.0f, az = 0.0f;

    for (unsigned start = 0; start < bodies; start += blockDim.x) {
        unsigned j = start + threadIdx.x;
        // A body without mass has no pull: it fills the last tile.
        tile[threadIdx.x] = j < bodies ? positions[j] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        __syncthreads();
        for (unsigned k = 0; k < blockDim.x; ++k) {
            float4 other = tile[k];
            float dx = other.x - own.x, dy = other.y - own.y, dz = other.z - own.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + softening_squared);
            float pull = other.w * inverse * inverse * inverse;
            ax += dx * pull;
            ay += dy * pull;
            az += dz * pull;
        }
        __syncthreads();
    }

    if (i < bodies) {
        float4 velocity = velocities[i];
        velocity.x += ax * dt;
        velocity.y += ay * dt;
        velocity.z += az * dt;
        velocities[i] = velocity;
        moved[i] = make_float4(own.x + velocity.x * dt, own.y + velocity.y * dt, own.z + velocity.z * dt, own.w);
    }
}
