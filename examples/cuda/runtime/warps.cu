// Votes, matches, shuffles and groups of threads.
#include "check.h"
namespace cg = cooperative_groups;

__global__ void vote(unsigned *out) {
    unsigned lane = threadIdx.x % 32;
    out[0 * 32 + lane] = __ballot_sync(0xffffffff, lane % 3 == 0);
    out[1 * 32 + lane] = __any_sync(0xffffffff, lane == 7) * 2 + __all_sync(0xffffffff, lane < 31);
    out[2 * 32 + lane] = __match_any_sync(0xffffffff, lane / 8);
    out[3 * 32 + lane] = __shfl_xor_sync(0xffffffff, lane, 5);
    out[4 * 32 + lane] = __shfl_sync(0xffffffff, lane * lane, (lane + 1) % 32);
    out[5 * 32 + lane] = __popc(lane) * 100 + __clz(lane) + (__brev(lane) >> 27) * 10000;
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    unsigned sum = lane;
    for (int step = 4; step > 0; step /= 2) sum += tile.shfl_down(sum, step);
    out[6 * 32 + lane] = tile.shfl(sum, 0);
    out[7 * 32 + lane] = __ffs(lane) + __popcll(~0ull >> lane) * 1000;
}

int main() {
    Buffer<unsigned> out(8 * 32);
    vote<<<1, 32>>>(out.at);
    OK(cudaDeviceSynchronize());
    std::vector<unsigned> found = out.read();
    auto reversed = [](unsigned x) {
        unsigned out = 0;
        for (int bit = 0; bit < 5; bit++) out |= (x >> bit & 1) << (4 - bit);
        return out;
    };
    for (unsigned lane = 0; lane < 32; lane++) {
        HOLDS(found[lane] == 0x49249249);
        HOLDS(found[32 + lane] == 2);
        HOLDS(found[64 + lane] == 0xffu << (lane / 8 * 8));
        HOLDS(found[96 + lane] == (lane ^ 5));
        HOLDS(found[128 + lane] == (lane + 1) % 32 * ((lane + 1) % 32));
        unsigned clz = lane ? __builtin_clz(lane) : 32;
        HOLDS(found[160 + lane] == __builtin_popcount(lane) * 100 + clz + reversed(lane) * 10000);
        HOLDS(found[192 + lane] == 8 * (lane / 8 * 8) + 28);
        HOLDS(found[224 + lane] == unsigned(__builtin_ffs(lane)) + (64 - lane) * 1000);
    }
    return 0;
}
