// See columns.hpp. Sixteen rows, a cache line of each column of floats, at a time.
#include "store/columns.hpp"

#include <algorithm>
#include <cstring>

#include "store/prefetch.hpp"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define TIDEGS_AVX2
#endif

namespace tidegs::store {
namespace {

template <typename T>
void tile(const uint8_t* const* row, int64_t n, int64_t at, T* const* column, int64_t first, int64_t components) {
    for (int64_t k = 0; k < components; ++k)
        for (int64_t i = 0; i < n; ++i)
            std::memcpy(column[k] + first + i, row[i] + at + sizeof(T) * k, sizeof(T));
}

#ifdef TIDEGS_AVX2
// Eight values of eight rows.
__attribute__((target("avx2"))) inline void square(const uint8_t* const* row, int64_t at, float* const* column,
                                                   int64_t first) {
    __m256 r[8], s[8];
    for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(row[i] + at));
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            r[i + 2 * j] = _mm256_shuffle_ps(s[i + j], s[i + 2 + j], 0x44);
            r[i + 2 * j + 1] = _mm256_shuffle_ps(s[i + j], s[i + 2 + j], 0xee);
        }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(column[i] + first, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(column[i + 4] + first, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

// Of sixteen rows and at least eight components; the last eight may be done twice in part.
__attribute__((target("avx2"))) void tile_avx2(const uint8_t* const* row, int64_t at, float* const* column,
                                               int64_t first, int64_t components) {
    for (int64_t k = 0; k < components; k += 8) {
        const int64_t from = std::min(k, components - 8);
        square(row, at + 4 * from, column + from, first);
        square(row + 8, at + 4 * from, column + from, first + 8);
    }
}
const bool kHasAvx2 = __builtin_cpu_supports("avx2");
#endif

template <typename T>
void in_tiles(const uint8_t* const* row, int64_t n, int64_t at, T* const* column, int64_t components) {
    const auto nbytes = static_cast<int64_t>(sizeof(T)) * components;
    for (int64_t first = 0; first < n; first += kAhead) {
        const int64_t m = std::min(kAhead, n - first);
        for (int64_t i = first + kAhead; i < std::min(n, first + 2 * kAhead); ++i) prefetch(row[i] + at, nbytes);
#ifdef TIDEGS_AVX2
        if constexpr (sizeof(T) == 4) {
            if (kHasAvx2 && m == kAhead && components >= 8) {
                tile_avx2(row + first, at, column, first, components);
                continue;
            }
        }
#endif
        tile(row + first, m, at, column, first, components);
    }
}

}  // namespace

void to_columns(const uint8_t* const* row, int64_t n, int64_t at, float* const* column, int64_t components) {
    in_tiles(row, n, at, column, components);
}

void to_columns(const uint8_t* const* row, int64_t n, int64_t at, uint8_t* const* column, int64_t components) {
    in_tiles(row, n, at, column, components);
}

}  // namespace tidegs::store
