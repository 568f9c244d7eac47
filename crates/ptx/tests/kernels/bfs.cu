// nvrtc: --gpu-architecture=compute_80
// nvrtc_debug: --gpu-architecture=compute_90 --device-debug
// One level of breadth-first search over a graph in compressed rows; neighbours differ per lane, so loops diverge.
extern "C" __global__ void bfs_level(const int *first, const int *edges, int *distance, int vertices, int level, int *again) {
    int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= vertices || distance[v] != level) return;
    for (int e = first[v]; e < first[v + 1]; e++) {
        int to = edges[e];
        if (distance[to] < 0 && atomicCAS(&distance[to], -1, level + 1) == -1) *again = 1;
    }
}

// The same by a work list: the next frontier grows by an atomic cursor.
extern "C" __global__ void bfs_frontier(const int *first, const int *edges, int *distance, const int *frontier, int size,
                                        int *next, int *cursor, int level) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= size) return;
    int v = frontier[at];
    for (int e = first[v]; e < first[v + 1]; e++)
        if (atomicCAS(&distance[edges[e]], -1, level + 1) == -1) next[atomicAdd(cursor, 1)] = edges[e];
}
