// Spatial order and neighbours of points, for ingest: what tidegs/store/spatial.py and rows.py call.
// Invariant: results depend on the points alone, not on their order or the number of threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/hash.hpp"
#include "store/columns.hpp"
#include "store/curve.hpp"
#include "store/neighbours.hpp"
#include "store/pool.hpp"
#include "store/prefetch.hpp"

namespace tidegs::store {
namespace {

// Monotone from the real line to [0, 2^20): the interval [-1, 1] gets half of the cells, all beyond it the other half.
uint32_t cell(double u) {
    if (std::fabs(u) > 1) u = std::copysign(2 - 1 / std::fabs(u), u);
    const double at = (u + 2) * (1 << 18);
    return static_cast<uint32_t>(std::min(std::max(at, 0.0), static_cast<double>((1 << 20) - 1)));
}

// `cell` of component k of rows that begin with three floats; n of them, in groups that fit in registers.
TIDEGS_WIDE void cells_of(const uint8_t* rows, int64_t n, int64_t stride, int k, double center, double half, int shift,
                          uint32_t* at) {
    constexpr int64_t kGroup = 16;
    for (int64_t first = 0; first < n; first += kGroup) {
        double x[kGroup];
        int32_t found[kGroup];
        const int64_t m = std::min(kGroup, n - first);
        if (m < kGroup) std::fill_n(x, kGroup, 0.0);
        for (int64_t i = 0; i < m; ++i) {
            float v;
            std::memcpy(&v, rows + (first + i) * stride + 4 * k, sizeof v);
            x[i] = v;
        }
        for (int64_t i = 0; i < kGroup; ++i) {
            double u = (x[i] - center) / half;
            const double far = std::copysign(2 - 1 / std::fabs(u), u);
            u = std::fabs(u) > 1 ? far : u;
            double c = (u + 2) * (1 << 18);
            c = c > 0 ? c : 0;
            c = c < (1 << 20) - 1 ? c : (1 << 20) - 1;
            found[i] = static_cast<int32_t>(c) >> shift;
        }
        for (int64_t i = 0; i < m; ++i) at[first + i] = static_cast<uint32_t>(found[i]);
    }
}

constexpr int64_t kRows = 1 << 14;  // of one job

// Runs job(first, end) on all of n rows, on so many threads.
template <typename Job>
void in_parts(int64_t n, int threads, const Job& job) {
    Pool pool(static_cast<int>(std::min<int64_t>(threads, (n + kRows - 1) / kRows)) - 1);
    pool.run((n + kRows - 1) / kRows, [&](size_t i) {
        const int64_t first = static_cast<int64_t>(i) * kRows;
        job(first, std::min(n, first + kRows));
    });
}

}  // namespace
}  // namespace tidegs::store

#define TIDEGS_API extern "C" __attribute__((visibility("default")))

using tidegs::mix;
using tidegs::store::kAhead;
using tidegs::store::Neighbours;
using tidegs::store::prefetch;
using tidegs::store::to_columns;

// Keys of 60 bits: positions relative to a cube (centre [3] and half its side); inside it resolution is even. Rows of
// `stride` bytes begin with x, y, z. `bits` < 20 gives the first 3 * bits bits of the keys.
TIDEGS_API void tidegs_store_hilbert(const uint8_t* rows, int64_t n, int64_t stride, const double* center, double half,
                                     int bits, uint64_t* key, int threads) {
    using namespace tidegs::store;
    constexpr int64_t kPart = 1024;
    in_parts(n, threads, [=](int64_t begin, int64_t end) {
        uint32_t at[3][kPart];
        for (int64_t first = begin; first < end; first += kPart) {
            const int64_t m = std::min(kPart, end - first);
            for (int k = 0; k < 3; ++k)
                cells_of(rows + first * stride, m, stride, k, center[k], half, kBits - bits, at[k]);
            hilbert(at[0], at[1], at[2], m, bits, key + first);
        }
    });
}

// A first look at rows of `stride` bytes that begin with x, y, z: hash [n] of these bits, and whether the first
// `floats` floats of each row are all finite, [n].
TIDEGS_API void tidegs_store_survey(const uint8_t* rows, int64_t n, int64_t stride, int64_t floats, uint64_t* hash,
                                    uint8_t* finite, int threads) {
    using namespace tidegs::store;
    in_parts(n, threads, [=](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i) {
            const uint8_t* row = rows + i * stride;
            uint32_t bits[3];
            std::memcpy(bits, row, sizeof bits);
            hash[i] = mix(mix(bits[0] | static_cast<uint64_t>(bits[1]) << 32) ^ bits[2]);
            uint32_t wrong = 0;
            for (int64_t k = 0; k < floats; ++k) {
                uint32_t b;
                std::memcpy(&b, row + 4 * k, 4);
                wrong |= static_cast<uint32_t>((b & 0x7f800000u) == 0x7f800000u);
            }
            finite[i] = wrong == 0;
        }
    });
}

// extent[i]: the greatest of the three floats at byte `at` of a row.
TIDEGS_API void tidegs_store_greatest(const uint8_t* rows, int64_t n, int64_t stride, int64_t at, float* extent,
                                      int threads) {
    using namespace tidegs::store;
    in_parts(n, threads, [=](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i) {
            float v[3];
            std::memcpy(v, rows + i * stride + at, sizeof v);
            extent[i] = std::max(std::max(v[0], v[1]), v[2]);
        }
    });
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

// Of each point (xyz [n, 3]) the buckets, but its own, that the ball around it (radius: the root of best [n, 3]'s last)
// may reach: pairs of row and bucket, ascending, up to `most`; returns how many there are. bucket [x, y, z]: of each
// cell, 2^levels along each axis; they are `buckets`. A ball of more than kMany cells reaches all of them.
TIDEGS_API int64_t tidegs_store_overlapped(const float* xyz, const double* best, int64_t n, const double* center,
                                           double half, int levels, const int32_t* bucket, int32_t buckets, int32_t own,
                                           int64_t* row, int32_t* reached, int64_t most) {
    using namespace tidegs::store;
    constexpr int64_t kMany = 4096;
    const int shift = kBits - levels;
    std::vector<int32_t> mine;
    int64_t found = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double reach = std::sqrt(best[3 * i + 2]) * (1 + 1e-9) + 1e-30;
        int64_t low[3], high[3], cells = 1;
        for (int k = 0; k < 3; ++k) {
            const double x = xyz[3 * i + k];
            low[k] = cell((x - reach - center[k]) / half) >> shift;
            high[k] = cell((x + reach - center[k]) / half) >> shift;
            cells *= high[k] - low[k] + 1;
        }
        if (cells == 1) continue;
        mine.clear();
        if (cells > kMany) {
            for (int32_t b = 0; b < buckets; ++b) mine.push_back(b);
        } else {
            for (int64_t x = low[0]; x <= high[0]; ++x)
                for (int64_t y = low[1]; y <= high[1]; ++y)
                    for (int64_t z = low[2]; z <= high[2]; ++z) {
                        const int32_t b = bucket[(x << levels | y) << levels | z];
                        if (b != own && (mine.empty() || b != mine.back())) mine.push_back(b);
                    }
            std::sort(mine.begin(), mine.end());
            mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
        }
        for (const int32_t b : mine) {
            if (b == own) continue;
            if (found < most) row[found] = i, reached[found] = b;
            ++found;
        }
    }
    return found;
}

// Copies n rows of nbytes each, wherever they lie, into one array.
TIDEGS_API void tidegs_store_gather(const uint8_t* const* row, int64_t n, int64_t nbytes, uint8_t* out) {
    for (int64_t i = 0; i < n; ++i) {
        if (i + kAhead < n) prefetch(row[i + kAhead], nbytes);
        std::memcpy(out + i * nbytes, row[i], nbytes);
    }
}

// Turns the values of n rows from byte `at` on into columns: value k of row i goes to column[k][i]. `floats`: they are
// floats, else bytes.
TIDEGS_API void tidegs_store_columns(const uint8_t* const* row, int64_t n, int64_t at, int floats, void* const* column,
                                     int64_t components) {
    if (floats)
        to_columns(row, n, at, reinterpret_cast<float* const*>(column), components);
    else
        to_columns(row, n, at, reinterpret_cast<uint8_t* const*>(column), components);
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
