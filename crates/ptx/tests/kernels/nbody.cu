// nvrtc: --gpu-architecture=compute_80
// One step of gravity between n bodies, positions passed through shared memory; and the same with fast maths.
extern "C" __global__ void nbody(float4 *position, const float4 *from, float4 *velocity, float step, int n) {
    extern __shared__ float4 tile[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float4 me = i < n ? from[i] : make_float4(0, 0, 0, 0);
    float ax = 0, ay = 0, az = 0;
    for (int start = 0; start < n; start += blockDim.x) {
        int other = start + threadIdx.x;
        tile[threadIdx.x] = other < n ? from[other] : make_float4(0, 0, 0, 0);
        __syncthreads();
        for (int k = 0; k < blockDim.x; k++) {
            float4 body = tile[k];
            float dx = body.x - me.x, dy = body.y - me.y, dz = body.z - me.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + 1e-4f);
            float pull = body.w * inverse * inverse * inverse;
            ax += dx * pull; ay += dy * pull; az += dz * pull;
        }
        __syncthreads();
    }
    if (i < n) {
        float4 v = velocity[i];
        v.x += ax * step; v.y += ay * step; v.z += az * step;
        velocity[i] = v;
        position[i] = make_float4(me.x + v.x * step, me.y + v.y * step, me.z + v.z * step, me.w);
    }
}
