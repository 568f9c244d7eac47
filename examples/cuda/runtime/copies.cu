// Copies in every direction, of parts, and a list of them.
#include "check.h"

int main() {
    const int n = 1000;
    std::vector<int> in = Numbers{}.ints(n, 100), out(n);
    Buffer<int> a(n), b(n);
    OK(cudaMemcpy(a.at, in.data(), n * sizeof(int), cudaMemcpyDefault));
    OK(cudaMemcpy(b.at, a.at, n * sizeof(int), cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy(out.data(), b.at, n * sizeof(int), cudaMemcpyDefault));
    HOLDS(out == in);
    std::vector<int> other(n);
    OK(cudaMemcpy(other.data(), in.data(), n * sizeof(int), cudaMemcpyHostToHost));
    HOLDS(other == in);
    OK(cudaMemcpy(a.at + 10, b.at + 500, 100 * sizeof(int), cudaMemcpyDeviceToDevice));
    std::copy(in.begin() + 500, in.begin() + 600, in.begin() + 10);
    HOLDS(a.read() == in);
    OK(cudaMemcpyPeer(b.at, 0, a.at, 0, n * sizeof(int)));
    HOLDS(b.read() == in);
    OK(cudaMemset(a.at, 0x11, n * sizeof(int)));
    HOLDS(a.read() == std::vector<int>(n, 0x11111111));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemsetAsync(a.at, 0, n * sizeof(int), stream));
    OK(cudaMemcpyPeerAsync(a.at, 0, b.at, 0, 10 * sizeof(int), stream));
    OK(cudaStreamSynchronize(stream));
    std::vector<int> found = a.read();
    for (int i = 0; i < n; i++) HOLDS(found[i] == (i < 10 ? in[i] : 0));
    OK(cudaStreamDestroy(stream));
    return 0;
}
