// See neighbours.hpp. A leaf's points are looked up together: they share the way through the boxes.
#include "store/neighbours.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "store/curve.hpp"
#include "store/pool.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define TIDEGS_AVX2
#endif

namespace tidegs::store {
namespace {

constexpr float kFar = std::numeric_limits<float>::infinity();
constexpr int64_t kStep = 512;  // leaves, or other points, of one job
constexpr int kPlaceBits = 11;  // of a place on the curve, for each axis
constexpr int kStack = 128;     // seven nodes of each level, at most
// Differences of floats, squares and sums are off by less than this share in float; what passes is looked at in double.
constexpr double kAbove = 1 + 1e-6;
constexpr float kBelow = 1 - 1e-6f, kTiny = 1e-37f;

inline void insert(double* b, double d2) {
    if (d2 >= b[2]) return;
    b[2] = d2;
    if (b[2] < b[1]) std::swap(b[1], b[2]);
    if (b[1] < b[0]) std::swap(b[0], b[1]);
}

// Which of eight points are not farther than the root of `limit` from (px, py, pz), in float.
inline unsigned within(const float (&x)[3][8], float px, float py, float pz, float limit) {
    float d2[8];
    for (int j = 0; j < 8; ++j) {
        const float dx = x[0][j] - px, dy = x[1][j] - py, dz = x[2][j] - pz;
        d2[j] = dx * dx + dy * dy + dz * dz;
    }
    unsigned mask = 0;
    for (int j = 0; j < 8; ++j) mask |= static_cast<unsigned>(d2[j] <= limit) << j;
    return mask;
}

#ifdef TIDEGS_AVX2
__attribute__((target("avx2"))) inline unsigned within_avx2(const float (&x)[3][8], float px, float py, float pz,
                                                            float limit) {
    const __m256 dx = _mm256_sub_ps(_mm256_loadu_ps(x[0]), _mm256_set1_ps(px));
    const __m256 dy = _mm256_sub_ps(_mm256_loadu_ps(x[1]), _mm256_set1_ps(py));
    const __m256 dz = _mm256_sub_ps(_mm256_loadu_ps(x[2]), _mm256_set1_ps(pz));
    const __m256 d2 = _mm256_add_ps(_mm256_add_ps(_mm256_mul_ps(dx, dx), _mm256_mul_ps(dy, dy)), _mm256_mul_ps(dz, dz));
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(d2, _mm256_set1_ps(limit), _CMP_LE_OQ)));
}
#endif

// Which of eight points p are within their limits of a box, in float.
inline unsigned reaching(const float (&p)[3][8], const float* lo, const float* hi, const float* limit) {
    unsigned mask = 0;
    for (int i = 0; i < 8; ++i) {
        float sum = 0;
        for (int k = 0; k < 3; ++k) {
            const float off = std::max(std::max(lo[k] - p[k][i], p[k][i] - hi[k]), 0.0f);
            sum += off * off;
        }
        mask |= static_cast<unsigned>(sum * kBelow <= limit[i]) << i;
    }
    return mask;
}

#ifdef TIDEGS_AVX2
__attribute__((target("avx2"))) inline unsigned reaching_avx2(const float (&p)[3][8], const float* lo, const float* hi,
                                                              const float* limit) {
    __m256 sum = _mm256_setzero_ps();
    for (int k = 0; k < 3; ++k) {
        const __m256 at = _mm256_loadu_ps(p[k]);
        __m256 off = _mm256_max_ps(_mm256_sub_ps(_mm256_set1_ps(lo[k]), at), _mm256_sub_ps(at, _mm256_set1_ps(hi[k])));
        off = _mm256_max_ps(off, _mm256_setzero_ps());
        sum = _mm256_add_ps(sum, _mm256_mul_ps(off, off));
    }
    sum = _mm256_mul_ps(sum, _mm256_set1_ps(kBelow));
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(sum, _mm256_loadu_ps(limit), _CMP_LE_OQ)));
}
#endif

// Improves the best distances of those of the points p that `some` tells by a leaf's eight points x; `own`: they are the
// same.
template <unsigned (*Within)(const float (&)[3][8], float, float, float, float)>
inline bool scan_with(const float (&x)[3][8], const float (&p)[3][8], unsigned some, const float* limit, bool own,
                      double (*best)[3]) {
    bool nearer = false;
    for (; some; some &= some - 1) {
        const int i = __builtin_ctz(some);
        unsigned mask = Within(x, p[0][i], p[1][i], p[2][i], limit[i]);
        if (own) mask &= ~(1u << i);
        for (; mask; mask &= mask - 1) {
            const int j = __builtin_ctz(mask);
            const double dx = static_cast<double>(x[0][j]) - p[0][i], dy = static_cast<double>(x[1][j]) - p[1][i],
                         dz = static_cast<double>(x[2][j]) - p[2][i];
            const double d2 = dx * dx + dy * dy + dz * dz;  // summed as in gaussians/init.py
            nearer |= d2 < best[i][2];
            insert(best[i], d2);
        }
    }
    return nearer;
}

#ifdef TIDEGS_AVX2
__attribute__((target("avx2"), flatten)) bool scan_avx2(const float (&x)[3][8], const float (&p)[3][8], const float* lo,
                                                        const float* hi, const float* limit, bool own,
                                                        double (*best)[3]) {
    return scan_with<within_avx2>(x, p, reaching_avx2(p, lo, hi, limit), limit, own, best);
}
const bool kHasAvx2 = __builtin_cpu_supports("avx2");
#endif

// Improves the best distances of eight points p, within their limits, by a leaf's eight points x in the box lo, hi.
bool scan(const float (&x)[3][8], const float (&p)[3][8], const float* lo, const float* hi, const float* limit, bool own,
          double (*best)[3]) {
#ifdef TIDEGS_AVX2
    if (kHasAvx2) return scan_avx2(x, p, lo, hi, limit, own, best);
#endif
    return scan_with<within>(x, p, reaching(p, lo, hi, limit), limit, own, best);
}

// Squared distances from a box to eight boxes, never above the true ones.
TIDEGS_WIDE void box_distances(const float (&lo)[3][8], const float (&hi)[3][8], const float* low, const float* high,
                               float* __restrict d2) {
    for (int j = 0; j < 8; ++j) {
        float sum = 0;
        for (int k = 0; k < 3; ++k) {
            const float below = lo[k][j] - high[k], above = low[k] - hi[k][j];
            float off = below > above ? below : above;
            off = off > 0 ? off : 0;
            sum += off * off;
        }
        d2[j] = sum * kBelow;
    }
}

}  // namespace

struct Neighbours::Query {
    int64_t count, self;  // points; the leaf that they are, or -1
    float x[3][kLeaf];
    double best[kLeaf][3];
    float low[3], high[3];
    float limit[kLeaf];  // at least best[i][2]; below zero where there is no point
    double worst;

    void renew() {
        worst = 0;
        for (int64_t i = 0; i < kLeaf; ++i) {
            limit[i] = i < count ? static_cast<float>(best[i][2] * kAbove) + kTiny : -1.0f;
            if (i < count) worst = std::max(worst, best[i][2]);
        }
    }
};

Neighbours::Neighbours(const float* xyz, int64_t n) : index_(n) {
    std::iota(index_.begin(), index_.end(), 0u);
    place(xyz, index_.data(), n);
    const int64_t count = (n + kLeaf - 1) / kLeaf;
    leaves_.resize(count);
    levels_.emplace_back((count + kLeaf - 1) / kLeaf);
    for (int64_t leaf = 0; leaf < count; ++leaf) {
        Boxes& boxes = levels_[0][leaf / kLeaf];
        for (int k = 0; k < 3; ++k) {
            float lo = kFar, hi = -kFar;
            for (int64_t j = 0; j < kLeaf; ++j) {
                const int64_t i = leaf * kLeaf + j;
                const float v = i < n ? xyz[3 * int64_t{index_[i]} + k] : kFar;
                leaves_[leaf].x[k][j] = v;
                if (i < n) lo = std::min(lo, v), hi = std::max(hi, v);
            }
            boxes.lo[k][leaf % kLeaf] = lo;
            boxes.hi[k][leaf % kLeaf] = hi;
        }
    }
    for (int64_t nodes = count; nodes > kLeaf; nodes = (nodes + kLeaf - 1) / kLeaf) add_level(nodes);
}

// Orders points along the curve within their own box; those that fall into one cell, within theirs, and so on.
void Neighbours::place(const float* xyz, uint32_t* index, int64_t n) {
    double low[3], side = 0;
    for (int k = 0; k < 3; ++k) {
        float lo = kFar, hi = -kFar;
        for (int64_t i = 0; i < n; ++i) {
            lo = std::min(lo, xyz[3 * int64_t{index[i]} + k]);
            hi = std::max(hi, xyz[3 * int64_t{index[i]} + k]);
        }
        low[k] = lo;
        side = std::max(side, static_cast<double>(hi) - lo);
    }
    if (!(side > 0)) return;
    const double scale = (1 << kPlaceBits) / side;
    std::vector<uint32_t> cell[3];
    for (int k = 0; k < 3; ++k) {
        cell[k].resize(n);
        for (int64_t i = 0; i < n; ++i) {
            const double at = (xyz[3 * int64_t{index[i]} + k] - low[k]) * scale;
            cell[k][i] = static_cast<uint32_t>(std::min(at, (1 << kPlaceBits) - 1.0));
        }
    }
    std::vector<uint64_t> key(n);
    hilbert(cell[0].data(), cell[1].data(), cell[2].data(), n, kPlaceBits, key.data());
    const std::vector<uint32_t> order = order_of(key.data(), n), before(index, index + n);
    for (int64_t i = 0; i < n; ++i) index[i] = before[order[i]];
    for (int64_t first = 0, i = 1; i <= n; ++i) {
        if (i < n && key[order[i]] == key[order[first]]) continue;
        if (i - first > 4 * kLeaf) place(xyz, index + first, i - first);
        first = i;
    }
}

// The boxes around groups of eight of the last level's nodes.
void Neighbours::add_level(int64_t nodes) {
    const std::vector<Boxes>& below = levels_.back();
    std::vector<Boxes> level((below.size() + kLeaf - 1) / kLeaf);
    for (size_t node = 0; node < below.size(); ++node)
        for (int k = 0; k < 3; ++k) {
            const int64_t have = std::min<int64_t>(kLeaf, nodes - node * kLeaf);
            level[node / kLeaf].lo[k][node % kLeaf] = *std::min_element(below[node].lo[k], below[node].lo[k] + have);
            level[node / kLeaf].hi[k][node % kLeaf] = *std::max_element(below[node].hi[k], below[node].hi[k] + have);
        }
    levels_.push_back(std::move(level));
}

void Neighbours::visit_leaf(Query& q, int64_t leaf) const {
    const Boxes& boxes = levels_[0][leaf / kLeaf];
    float lo[3], hi[3];
    for (int k = 0; k < 3; ++k) lo[k] = boxes.lo[k][leaf % kLeaf], hi[k] = boxes.hi[k][leaf % kLeaf];
    if (scan(leaves_[leaf].x, q.x, lo, hi, q.limit, leaf == q.self, q.best)) q.renew();
}

void Neighbours::visit(Query& q) const {
    struct Node {
        int level;
        int64_t group;
        float d2;
    } stack[kStack];
    int size = 0;
    stack[size++] = {static_cast<int>(levels_.size()) - 1, 0, 0};
    const int64_t leaves = static_cast<int64_t>(leaves_.size());
    while (size) {
        const Node node = stack[--size];
        if (node.d2 >= q.worst) continue;
        const Boxes& boxes = levels_[node.level][node.group];
        float d2[kLeaf];
        box_distances(boxes.lo, boxes.hi, q.low, q.high, d2);
        const int64_t nodes = node.level ? static_cast<int64_t>(levels_[node.level - 1].size()) : leaves;
        const int64_t have = std::min<int64_t>(kLeaf, nodes - node.group * kLeaf);
        for (int64_t j = 0; j < have; ++j) {
            if (d2[j] >= q.worst) continue;
            const int64_t child = node.group * kLeaf + j;
            if (node.level)
                stack[size++] = {node.level - 1, child, d2[j]};
            else if (q.self < 0 || child < q.self - 1 || child > q.self + 1)
                visit_leaf(q, child);
        }
    }
}

void Neighbours::of_themselves(double* best, int threads) const {
    const int64_t n = static_cast<int64_t>(index_.size()), leaves = static_cast<int64_t>(leaves_.size());
    Pool pool(threads - 1);
    pool.run((leaves + kStep - 1) / kStep, [&](size_t job) {
        const int64_t end = std::min<int64_t>(leaves, (job + 1) * kStep);
        for (int64_t leaf = job * kStep; leaf < end; ++leaf) {
            Query q;
            q.count = std::min(kLeaf, n - leaf * kLeaf);
            q.self = leaf;
            const Boxes& boxes = levels_[0][leaf / kLeaf];
            for (int k = 0; k < 3; ++k) {
                q.low[k] = boxes.lo[k][leaf % kLeaf];
                q.high[k] = boxes.hi[k][leaf % kLeaf];
                for (int64_t i = 0; i < kLeaf; ++i) q.x[k][i] = leaves_[leaf].x[k][i];
            }
            for (int64_t i = 0; i < q.count; ++i)
                for (int k = 0; k < 3; ++k) q.best[i][k] = best[3 * int64_t{index_[leaf * kLeaf + i]} + k];
            q.renew();
            for (int64_t near = std::max<int64_t>(0, leaf - 1); near < std::min(leaves, leaf + 2); ++near)
                visit_leaf(q, near);
            visit(q);
            for (int64_t i = 0; i < q.count; ++i)
                for (int k = 0; k < 3; ++k) best[3 * int64_t{index_[leaf * kLeaf + i]} + k] = q.best[i][k];
        }
    });
}

void Neighbours::of_others(const float* xyz, int64_t n, double* best, int threads) const {
    if (leaves_.empty()) return;
    Pool pool(threads - 1);
    pool.run((n + kStep - 1) / kStep, [&](size_t job) {
        const int64_t end = std::min<int64_t>(n, (job + 1) * kStep);
        for (int64_t i = job * kStep; i < end; ++i) {
            Query q{};
            q.count = 1;
            q.self = -1;
            for (int k = 0; k < 3; ++k) q.x[k][0] = q.low[k] = q.high[k] = xyz[3 * i + k];
            std::copy_n(best + 3 * i, 3, q.best[0]);
            q.renew();
            visit(q);
            std::copy_n(q.best[0], 3, best + 3 * i);
        }
    });
}

}  // namespace tidegs::store
