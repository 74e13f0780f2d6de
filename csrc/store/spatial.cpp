// Spatial order and neighbours of points, for ingest: what tidegs/store/spatial.py and rows.py call.
// Invariant: results depend on the points alone, not on their order or the number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "store/curve.hpp"
#include "store/neighbours.hpp"

namespace tidegs::store {
namespace {

// Monotone from the real line to [0, 2^20): the interval [-1, 1] gets half of the cells, all beyond it the other half.
uint32_t cell(double u) {
    if (std::fabs(u) > 1) u = std::copysign(2 - 1 / std::fabs(u), u);
    const double at = (u + 2) * (1 << 18);
    return static_cast<uint32_t>(std::min(std::max(at, 0.0), static_cast<double>((1 << 20) - 1)));
}

}  // namespace
}  // namespace tidegs::store

#define TIDEGS_API extern "C" __attribute__((visibility("default")))

using tidegs::store::Neighbours;

// Keys of 60 bits: positions relative to a cube (centre [3] and half its side); inside it resolution is even. Rows of
// `stride` bytes begin with x, y, z. `bits` < 20 gives the first 3 * bits bits of the keys.
TIDEGS_API void tidegs_store_hilbert(const uint8_t* rows, int64_t n, int64_t stride, const double* center, double half,
                                     int bits, uint64_t* key) {
    using namespace tidegs::store;
    constexpr int64_t kPart = 1024;
    uint32_t at[3][kPart];
    for (int64_t first = 0; first < n; first += kPart) {
        const int64_t m = std::min(kPart, n - first);
        for (int64_t i = 0; i < m; ++i) {
            float xyz[3];
            std::memcpy(xyz, rows + (first + i) * stride, sizeof xyz);
            for (int k = 0; k < 3; ++k) at[k][i] = cell((xyz[k] - center[k]) / half) >> (kBits - bits);
        }
        hilbert(at[0], at[1], at[2], m, bits, key + first);
    }
}

// The same for cells [n, 3] of `bits` bits an axis.
TIDEGS_API void tidegs_store_hilbert_cells(const int64_t* cells, int64_t n, int bits, uint64_t* key) {
    std::vector<uint32_t> at[3];
    for (int k = 0; k < 3; ++k) {
        at[k].resize(n);
        for (int64_t i = 0; i < n; ++i) at[k][i] = static_cast<uint32_t>(cells[3 * i + k]);
    }
    tidegs::store::hilbert(at[0].data(), at[1].data(), at[2].data(), n, bits, key);
}

// The stable order of keys.
TIDEGS_API void tidegs_store_order(const uint64_t* key, int64_t n, int64_t* order) {
    const auto found = tidegs::store::order_of(key, n);
    std::copy(found.begin(), found.end(), order);
}

// Sorts rows of nbytes by group (0 to groups - 1), each group in its order; start [groups + 1]: where each begins.
TIDEGS_API void tidegs_store_group(const uint8_t* row, int64_t n, int64_t nbytes, const int32_t* group, int64_t groups,
                                   uint8_t* out, int64_t* start) {
    std::fill_n(start, groups + 1, 0);
    for (int64_t i = 0; i < n; ++i) ++start[group[i] + 1];
    for (int64_t g = 0; g < groups; ++g) start[g + 1] += start[g];
    std::vector<int64_t> at(start, start + groups);
    for (int64_t i = 0; i < n; ++i) std::memcpy(out + nbytes * at[group[i]]++, row + nbytes * i, nbytes);
}

// near[i]: whether the ball around a point (xyz [n, 3]; radius: the root of best [n, 3]'s last) leaves its cell, one of
// 2^levels along each axis.
TIDEGS_API void tidegs_store_leaves_cell(const float* xyz, const double* best, int64_t n, const double* center,
                                         double half, int levels, uint8_t* near) {
    using namespace tidegs::store;
    const int shift = kBits - levels;
    for (int64_t i = 0; i < n; ++i) {
        const double reach = std::sqrt(best[3 * i + 2]) * (1 + 1e-9) + 1e-30;
        near[i] = 0;
        for (int k = 0; k < 3; ++k) {
            const double x = xyz[3 * i + k];
            near[i] |= cell((x - reach - center[k]) / half) >> shift != cell((x + reach - center[k]) / half) >> shift;
        }
    }
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

TIDEGS_API Neighbours* tidegs_store_knn_new(const float* xyz, int64_t n) { return new Neighbours(xyz, n); }
TIDEGS_API void tidegs_store_knn_free(Neighbours* found) { delete found; }

// Improves best [n, 3] (squared, ascending) of the points themselves, each without itself.
TIDEGS_API void tidegs_store_knn_self(const Neighbours* found, double* best, int threads) {
    found->of_themselves(best, threads);
}

// The same for n points that are not among them.
TIDEGS_API void tidegs_store_knn_others(const Neighbours* found, const float* xyz, int64_t n, double* best,
                                        int threads) {
    found->of_others(xyz, n, best, threads);
}
