// The separable 11-tap Gaussian window of SSIM (sigma 1.5) over rows of floats of one fixed pitch.
// Invariant: no sum runs across columns, so the result of a column depends neither on the vector width nor on the tile.
#pragma once

#include "core/simd.hpp"

namespace tidegs::loss {

constexpr int kTaps = 11;
constexpr int kHalf = kTaps / 2;
constexpr int kTileCols = 256;  // most columns of the image in one task
constexpr int kPitch = 304;     // floats between rows: the tile, a halo of two windows, room for a last vector
constexpr int kBlock = 4;       // rows that `down` makes at once
static_assert(kPitch >= kTileCols + 2 * 16 && kPitch % 16 == 0, "a last vector must stay within its row");

// exp(-k^2 / (2 * 1.5^2)) / sum for k = 0..5 (Wang et al. 2004, section III.C).
constexpr float kWindow[kHalf + 1] = {0.26601172f, 0.21300554f, 0.10936069f, 0.03600077f, 0.00759876f, 0.00102838f};

// The W floats at src + k, of which `first` and `second` are the ones at src and src + W. On AVX-512 nearly every load
// that is not aligned takes two cache lines, so that half of them are better made of two aligned ones.
template <int k>
inline vf behind([[maybe_unused]] const float* src, [[maybe_unused]] vf first, [[maybe_unused]] vf second) {
#if defined(__AVX512F__)
    return (vf)_mm512_alignr_epi32((__m512i)second, (__m512i)first, k);
#else
    return load(src + k);
#endif
}

// The window over W adjacent columns: lane i is centred on src[i + 5].
inline vf across(const float* src) {
    const vf first = load(src), second = load(src + W);
    vf sum = load(src + kHalf) * kWindow[0];
    sum = fma(set1(kWindow[1]), behind<4>(src, first, second) + load(src + 6), sum);
    sum = fma(set1(kWindow[2]), behind<3>(src, first, second) + load(src + 7), sum);
    sum = fma(set1(kWindow[3]), behind<2>(src, first, second) + load(src + 8), sum);
    sum = fma(set1(kWindow[4]), behind<1>(src, first, second) + load(src + 9), sum);
    return fma(set1(kWindow[5]), first + load(src + 10), sum);
}

// sum[r] += value times its weight in the window over the rows r .. r + 10, r < kBlock.
inline void weigh(int row, vf value, vf (&sum)[kBlock]) {
#pragma GCC unroll 4
    for (int r = 0; r < kBlock; ++r) {
        const int k = row - r - kHalf;
        if (k >= -kHalf && k <= kHalf) sum[r] = fma(set1(kWindow[k < 0 ? -k : k]), value, sum[r]);
    }
}

// out[r] = the window over the rows src[r .. r + 10], r < kBlock, for n columns; each source row is loaded once.
[[gnu::noinline]] inline void down(const float* src, float* out, int n) {
    for (int i = 0; i < n; i += W) {
        vf sum[kBlock] = {};
#pragma GCC unroll 16
        for (int row = 0; row < kBlock + kTaps - 1; ++row) weigh(row, load(src + row * kPitch + i), sum);
        for (int r = 0; r < kBlock; ++r) store(out + r * kPitch + i, sum[r]);
    }
}

struct Two {
    vf first, second;
};

// The same of two values that `at` makes of an offset from the first row.
template <class At>
[[gnu::noinline]] void down_two(const At& at, float* first, float* second, int n) {
    for (int i = 0; i < n; i += W) {
        vf a[kBlock] = {}, b[kBlock] = {};
#pragma GCC unroll 16
        for (int row = 0; row < kBlock + kTaps - 1; ++row) {
            const Two value = at(row * kPitch + i);
            weigh(row, value.first, a);
            weigh(row, value.second, b);
        }
        for (int r = 0; r < kBlock; ++r) store(first + r * kPitch + i, a[r]), store(second + r * kPitch + i, b[r]);
    }
}

}  // namespace tidegs::loss
