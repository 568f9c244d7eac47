// Managed memory that host and device write in turn.
#include "check.h"

struct Node {
    int value;
    Node *next;
};

__global__ void twice(Node *node) {
    for (; node; node = node->next) node->value *= 2;
}

int main() {
    Node *first = nullptr;
    for (int i = 0; i < 10; i++) {
        Node *node;
        OK(cudaMallocManaged(&node, sizeof(Node)));
        *node = {i, first};
        first = node;
    }
    twice<<<1, 1>>>(first);
    OK(cudaDeviceSynchronize());
    int expected = 18;
    while (first) {
        HOLDS(first->value == expected);
        expected -= 2;
        cudaPointerAttributes of;
        OK(cudaPointerGetAttributes(&of, first));
        HOLDS(of.type == cudaMemoryTypeManaged);
        Node *next = first->next;
        OK(cudaFree(first));
        first = next;
    }
    HOLDS(expected == -2);
    return 0;
}
