// Spatial order and neighbours of points, for ingest: Hilbert keys and exact nearest distances by a kd-tree.
// Invariant: results depend on the points alone, not on their order or the number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "store/pool.hpp"

namespace tidegs::store {
namespace {

constexpr int64_t kLeaf = 12;
constexpr double kSlack = 1 - 1e-12;  // the distance to a cell is a running sum: allow for its rounding
constexpr int64_t kParallel = 1 << 14;  // points of a subtree worth a thread of its own

struct Node {
    float split;
    int32_t axis;     // -1: a leaf
    int64_t right;    // index of the right child; the left one follows its parent
};

struct Point {
    float x[3];
    int64_t index;
};

// A node count that depends on n alone, so that subtrees can be built side by side in one array.
int64_t node_count(int64_t n) {
    return n <= kLeaf ? 1 : 1 + node_count(n / 2) + node_count(n - n / 2);
}

}  // namespace

class KdTree {
   public:
    KdTree(const float* xyz, int64_t n, int threads) : points_(n) {
        for (int64_t i = 0; i < n; ++i) points_[i] = {{xyz[3 * i], xyz[3 * i + 1], xyz[3 * i + 2]}, i};
        nodes_.resize(node_count(n));
        build(0, 0, n, threads);
    }

    // Improves best[3] (ascending squared distances) by the points nearest to q, except the one of index `self`.
    void nearest(const float* q, int64_t self, double* best) const {
        Query query{{q[0], q[1], q[2]}, self, best, {0, 0, 0}};
        visit(query, 0, 0, static_cast<int64_t>(points_.size()), 0.0);
    }

    const std::vector<Point>& points() const { return points_; }

   private:
    struct Query {
        double x[3];
        int64_t self;
        double* best;
        double off[3];  // distance to the cell along each axis
    };

    void build(int64_t node, int64_t lo, int64_t hi, int threads) {
        if (hi - lo <= kLeaf) {
            nodes_[node].axis = -1;
            return;
        }
        float least[3], most[3];
        std::fill_n(least, 3, std::numeric_limits<float>::infinity());
        std::fill_n(most, 3, -std::numeric_limits<float>::infinity());
        for (int64_t i = lo; i < hi; ++i)
            for (int k = 0; k < 3; ++k) {
                least[k] = std::min(least[k], points_[i].x[k]);
                most[k] = std::max(most[k], points_[i].x[k]);
            }
        int axis = 0;
        for (int k = 1; k < 3; ++k)
            if (most[k] - least[k] > most[axis] - least[axis]) axis = k;
        const int64_t mid = lo + (hi - lo) / 2;
        std::nth_element(points_.begin() + lo, points_.begin() + mid, points_.begin() + hi,
                         [axis](const Point& a, const Point& b) { return a.x[axis] < b.x[axis]; });
        const int64_t right = node + 1 + node_count(mid - lo);
        nodes_[node] = {points_[mid].x[axis], axis, right};
        if (threads > 1 && hi - lo > kParallel) {
            std::thread other([=] { build(node + 1, lo, mid, threads / 2); });
            build(right, mid, hi, threads - threads / 2);
            other.join();
        } else {
            build(node + 1, lo, mid, 1);
            build(right, mid, hi, 1);
        }
    }

    void visit(Query& q, int64_t node, int64_t lo, int64_t hi, double cell) const {
        const Node& n = nodes_[node];
        if (n.axis < 0) return scan(q, lo, hi);
        const int64_t mid = lo + (hi - lo) / 2;
        const double d = q.x[n.axis] - static_cast<double>(n.split), before = q.off[n.axis];
        const double far = cell - before * before + d * d;
        if (d < 0) {
            visit(q, node + 1, lo, mid, cell);
            if (far * kSlack > q.best[2]) return;
            q.off[n.axis] = d;
            visit(q, n.right, mid, hi, far);
        } else {
            visit(q, n.right, mid, hi, cell);
            if (far * kSlack > q.best[2]) return;
            q.off[n.axis] = d;
            visit(q, node + 1, lo, mid, far);
        }
        q.off[n.axis] = before;
    }

    void scan(Query& q, int64_t lo, int64_t hi) const {
        for (int64_t i = lo; i < hi; ++i) {
            const Point& p = points_[i];
            const double dx = p.x[0] - q.x[0], dy = p.x[1] - q.x[1], dz = p.x[2] - q.x[2];
            const double d2 = dx * dx + dy * dy + dz * dz;
            if (d2 >= q.best[2] || p.index == q.self) continue;
            double* b = q.best;
            b[2] = d2;
            if (b[2] < b[1]) std::swap(b[1], b[2]);
            if (b[1] < b[0]) std::swap(b[0], b[1]);
        }
    }

    std::vector<Point> points_;
    std::vector<Node> nodes_;
};

namespace {

constexpr int kBits = 20;  // of a key, for each axis

// Place of a cell along the Hilbert curve (Skilling, "Programming the Hilbert curve", 2004). Neighbours on the curve
// touch in space, which Morton order does not give. The first 3 b bits are those of the cell's coordinates cut to b bits.
uint64_t hilbert(uint32_t x, uint32_t y, uint32_t z, int bits) {
    uint32_t at[3] = {x, y, z};
    for (uint32_t q = 1u << (bits - 1); q > 1; q >>= 1)
        for (uint32_t& a : at) {
            const uint32_t swapped = (at[0] ^ a) & (q - 1);
            if (a & q)
                at[0] ^= q - 1;
            else
                at[0] ^= swapped, a ^= swapped;
        }
    at[1] ^= at[0];
    at[2] ^= at[1];
    uint32_t turn = 0;
    for (uint32_t q = 1u << (bits - 1); q > 1; q >>= 1)
        if (at[2] & q) turn ^= q - 1;
    uint64_t key = 0;
    for (int b = bits - 1; b >= 0; --b)
        for (uint32_t a : at) key = key << 1 | ((a ^ turn) >> b & 1);
    return key;
}

// Monotone from the real line to [0, 2^20): the interval [-1, 1] gets half of the cells, all beyond it the other half.
uint32_t cell(double u) {
    if (std::fabs(u) > 1) u = std::copysign(2 - 1 / std::fabs(u), u);
    const double at = (u + 2) * (1 << 18);
    return static_cast<uint32_t>(std::min(std::max(at, 0.0), static_cast<double>((1 << 20) - 1)));
}

}  // namespace
}  // namespace tidegs::store

#define TIDEGS_API extern "C" __attribute__((visibility("default")))

using tidegs::store::KdTree;

// Keys of 60 bits: positions relative to a cube (centre [3] and half its side); inside it resolution is even.
TIDEGS_API void tidegs_store_hilbert(const float* xyz, int64_t n, const double* center, double half, uint64_t* key) {
    using namespace tidegs::store;
    for (int64_t i = 0; i < n; ++i) {
        uint32_t at[3];
        for (int k = 0; k < 3; ++k) at[k] = cell((xyz[3 * i + k] - center[k]) / half);
        key[i] = hilbert(at[0], at[1], at[2], kBits);
    }
}

// The same for cells [n, 3] of `bits` bits an axis.
TIDEGS_API void tidegs_store_hilbert_cells(const int64_t* at, int64_t n, int bits, int64_t* key) {
    for (int64_t i = 0; i < n; ++i)
        key[i] = static_cast<int64_t>(tidegs::store::hilbert(at[3 * i], at[3 * i + 1], at[3 * i + 2], bits));
}

// Copies n rows of nbytes each, wherever they lie, into one array.
TIDEGS_API void tidegs_store_gather(const uint8_t* const* row, int64_t n, int64_t nbytes, uint8_t* out) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(out + i * nbytes, row[i], nbytes);
}

// Turns n rows of floats into columns: component k of row i goes to column[k][i]. Sixteen rows, a cache line of each
// column, at a time.
TIDEGS_API void tidegs_store_columns(const float* const* row, int64_t n, float* const* column, int64_t components) {
    constexpr int64_t kLine = 16;
    for (int64_t at = 0; at < n; at += kLine) {
        const int64_t m = std::min(kLine, n - at);
        for (int64_t k = 0; k < components; ++k)
            for (int64_t i = 0; i < m; ++i) column[k][at + i] = row[at + i][k];
    }
}

TIDEGS_API KdTree* tidegs_store_knn_new(const float* xyz, int64_t n, int threads) {
    return new KdTree(xyz, n, threads);
}
TIDEGS_API void tidegs_store_knn_free(KdTree* tree) { delete tree; }

// Improves best [n, 3] (squared, ascending) of the tree's own points, each without itself.
TIDEGS_API void tidegs_store_knn_self(const KdTree* tree, double* best, int threads) {
    const auto& points = tree->points();
    const int64_t n = static_cast<int64_t>(points.size()), step = 4096;
    tidegs::store::Pool pool(threads - 1);
    pool.run((n + step - 1) / step, [&](size_t c) {
        const int64_t end = std::min<int64_t>(n, (c + 1) * step);
        for (int64_t i = c * step; i < end; ++i)
            tree->nearest(points[i].x, points[i].index, best + 3 * points[i].index);
    });
}

// The same for n points that are not of the tree.
TIDEGS_API void tidegs_store_knn_others(const KdTree* tree, const float* xyz, int64_t n, double* best, int threads) {
    const int64_t step = 4096;
    tidegs::store::Pool pool(threads - 1);
    pool.run((n + step - 1) / step, [&](size_t c) {
        const int64_t end = std::min<int64_t>(n, (c + 1) * step);
        for (int64_t i = c * step; i < end; ++i) tree->nearest(xyz + 3 * i, -1, best + 3 * i);
    });
}
