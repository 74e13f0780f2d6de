// Bounds of rows for the table: least and greatest mean, greatest scale; with dense Adam, wherever momentum can take them.
// Invariant: min and max only, so neither lanes, items nor threads show in the bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/simd.hpp"
#include "raster/types.hpp"

namespace tidegs {

struct RowBounds {
    static constexpr float INF = std::numeric_limits<float>::infinity();

    float lo[3] = {INF, INF, INF}, hi[3] = {-INF, -INF, -INF};  // of the means
    float scale = -INF;                                         // greatest logarithm

    void join(const RowBounds& other) {
        for (int k = 0; k < 3; ++k) lo[k] = std::min(lo[k], other.lo[k]), hi[k] = std::max(hi[k], other.hi[k]);
        scale = std::max(scale, other.scale);
    }
    // To [3], [3] and one float; the extent over any rounding.
    void write(float* to_lo, float* to_hi, float* extent) const {
        std::copy_n(lo, 3, to_lo), std::copy_n(hi, 3, to_hi);
        *extent = (float)(std::exp((double)scale) * 1.000002);
    }
};

// How far momentum alone can still take rows: factors of |m| / (sqrt(v) + eps).
struct Reach {
    bool any;
    float means, scales, eps;
};

// Of rows [begin, end) of the plane `base` and its moments, `stride` floats from one component to the next.
inline RowBounds row_bounds(const float* base, const float* m, const float* v, size_t stride, int begin, int end,
                            const Reach& reach) {
    const auto way = [&](int component, int row, float factor) {
        const size_t at = component * stride + row;
        return load(m + at) * -factor / (sqrt(load(v + at)) + set1(reach.eps));
    };
    RowBounds out;
    for (int k = 0; k < 3; ++k) {
        const float *mean = base + (MEANS + k) * stride, *scale = base + (SCALES + k) * stride;
        vf lo = set1(out.INF), hi = set1(-out.INF), most = set1(-out.INF);
        for (int row = begin; row < end; row += W) {
            const vm used = first(end - row);
            vf least = load(mean + row), greatest = least, size = load(scale + row);
            if (reach.any) {
                const vf there = least + way(MEANS + k, row, reach.means);
                greatest = max(greatest, there), least = min(least, there);
                size = max(size, size + way(SCALES + k, row, reach.scales));
            }
            lo = min(select(used, least, lo), lo);
            hi = max(select(used, greatest, hi), hi);
            most = max(select(used, size, most), most);
        }
        for (int i = 0; i < W; ++i) {
            out.lo[k] = std::min(out.lo[k], lo[i]), out.hi[k] = std::max(out.hi[k], hi[i]);
            out.scale = std::max(out.scale, most[i]);
        }
    }
    return out;
}

}  // namespace tidegs
