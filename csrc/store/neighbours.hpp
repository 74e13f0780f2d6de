// Exact nearest distances among points: boxes over leaves of neighbours on the Hilbert curve, eight to a parent.
// Invariant: results depend on the points alone, not on their order or the number of threads.
#pragma once

#include <cstdint>
#include <vector>

namespace tidegs::store {

class Neighbours {
   public:
    // Copies finite xyz [n, 3], n < 2^32.
    Neighbours(const float* xyz, int64_t n);

    // Improves best [n, 3] (squared, ascending) of the points themselves, each without itself.
    void of_themselves(double* best, int threads) const;

    // The same for n points that are not among them.
    void of_others(const float* xyz, int64_t n, double* best, int threads) const;

   private:
    static constexpr int64_t kLeaf = 8;
    struct Boxes {  // of eight nodes
        float lo[3][kLeaf], hi[3][kLeaf];
    };
    struct Leaf {  // of eight points, filled up with points at infinity
        float x[3][kLeaf];
    };
    struct Query;

    void place(const float* xyz, uint32_t* index, int64_t n);
    void add_level(int64_t nodes);
    void visit(Query& q) const;
    void visit_leaf(Query& q, int64_t leaf) const;

    std::vector<uint32_t> index_;             // where the points came from, in the order of the leaves
    std::vector<Leaf> leaves_;
    std::vector<std::vector<Boxes>> levels_;  // from the boxes of leaves to the root's children
};

}  // namespace tidegs::store
