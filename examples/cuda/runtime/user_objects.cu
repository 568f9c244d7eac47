// Objects of the program that live as long as a graph that uses them.
#include "check.h"

static void CUDART_CB gone(void *data) { ++*(int *)data; }

int main() {
    int destroyed = 0;
    cudaUserObject_t object;
    OK(cudaUserObjectCreate(&object, &destroyed, gone, 1, cudaUserObjectNoDestructorSync));
    cudaGraph_t graph, copy;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
    cudaGraphNode_t first, second;
    OK(cudaGraphAddEmptyNode(&first, graph, nullptr, 0));
    OK(cudaGraphAddEmptyNode(&second, graph, &first, 1));
    OK(cudaGraphClone(&copy, graph));
    cudaGraphNode_t found;
    OK(cudaGraphNodeFindInClone(&found, second, copy));
    std::size_t before = 0;
#if CUDART_VERSION >= 13000
    OK(cudaGraphNodeGetDependencies(found, nullptr, nullptr, &before));
#else
    OK(cudaGraphNodeGetDependencies(found, nullptr, &before));
#endif
    HOLDS(before == 1);
    OK(cudaGraphDestroyNode(found));
    std::size_t nodes = 0;
    OK(cudaGraphGetNodes(copy, nullptr, &nodes));
    HOLDS(nodes == 1);
    OK(cudaGraphDestroy(graph));
    HOLDS(destroyed == 0);
    OK(cudaGraphDestroy(copy));
    for (int i = 0; i < 1000 && destroyed == 0; i++) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    HOLDS(destroyed == 1);
    return 0;
}
